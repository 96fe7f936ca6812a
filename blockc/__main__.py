"""python -m blockc"""

from blockc.cli import main

main()
