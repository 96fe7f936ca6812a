"""The numbers of the language: integers that int64 holds, and floats that fp32 holds with all digits.

Backends compute in these types, so that a number beyond them would be another number there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from blockc.basics.floats import FLOATS

LARGEST_INT = 2**63 - 1
LARGEST = FLOATS["fp32"].largest
SMALLEST = FLOATS["fp32"].smallest  # above 0 that fp32 holds in full: below, digits are lost, or all of the number


def fp32_fault(number: float) -> str:
    """Why fp32 does not hold a number, as the bound that it breaks; empty where it does."""
    if abs(number) > LARGEST:
        return f"at most {LARGEST:.3g}, the largest number of fp32"
    return f"at least {SMALLEST:.3g}, the smallest number of fp32" if 0 < abs(number) < SMALLEST else ""


@dataclass(frozen=True)
class InFp32:
    """A float whose magnitude is 0 or one that fp32 holds in full."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        said: dict[str, Any] = handler(schema)
        vanishing = {"exclusiveMinimum": 0, "exclusiveMaximum": SMALLEST}
        if "exclusiveMinimum" in said:
            return {**said, "minimum": SMALLEST, "maximum": LARGEST}
        if "minimum" in said:
            return {**said, "maximum": LARGEST} | ({} if said["minimum"] else {"not": vanishing})
        both = [vanishing, {"exclusiveMinimum": -SMALLEST, "exclusiveMaximum": 0}]
        return {**said, "minimum": -LARGEST, "maximum": LARGEST, "not": {"anyOf": both}}

    @staticmethod
    def _check(number: float) -> float:
        if expected := fp32_fault(number):
            what = "too large for fp32" if abs(number) > LARGEST else "too small for fp32"
            raise PydanticCustomError("out_of_fp32", "{what}", {"what": what, "expected": expected})
        return number


Positive = Annotated[int, Field(gt=0, le=LARGEST_INT)]
Count = Annotated[int, Field(ge=0, le=LARGEST_INT)]
Real = Annotated[float, InFp32()]
PositiveFloat = Annotated[float, Field(gt=0), InFp32()]
AtLeastOne = Annotated[float, Field(ge=1), InFp32()]  # of rope: below, a pair turns more than a radian a token
Epsilon = Annotated[float, Field(ge=0), InFp32()]
