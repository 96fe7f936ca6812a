"""BLC0xx: bytes to text, text to YAML, and assignments on the command line."""

from __future__ import annotations

from blockc.diagnostics.code import error

UNREADABLE = error(
    "BLC001",
    "the file cannot be read",
    "There is no such file, it is a folder or a device, the system refuses it, or it is larger than 1,000,000 bytes. "
    "A spec is a page of text; a file of another size is another file. The size is looked at before anything is read.",
    bad="$ blockc check /dev/null",
    good="$ blockc check example.yaml",
)
ENCODING = error(
    "BLC002",
    "the file is not UTF-8",
    "A spec is UTF-8, with or without a byte order mark. In another encoding the same bytes are other letters, and "
    "which encoding was meant would be a guess.",
    bad=b"blockc: 1\nname: caf\xe9\n",
    good="description: café\n",
)
CHARACTER = error(
    "BLC003",
    "a character that no text may hold",
    "NUL, other control characters, lone surrogates, and the line ends that only some readers take for such "
    "(U+0085, U+2028, U+2029) act on a terminal or make two readers disagree on where a line ends. A text may hold "
    "newline and tab, also when it is written with escapes.",
    bad='description: "red \\e[31m"\n',
    good='description: "a tab \\t and a newline \\n"\n',
)
EMPTY = error(
    "BLC004",
    "the spec is empty",
    "The file holds nothing, or comments alone.",
    bad="# to be written\n",
    good="blockc: 1\n",
    alone=True,
)
NOT_A_MAPPING = error(
    "BLC005",
    "a spec is a mapping",
    "The file is a list or a single value. A spec is one mapping of keys to values.",
    bad="- blockc: 1\n- name: example\n",
    good="blockc: 1\nname: example\n",
    alone=True,
)
DOCUMENTS = error(
    "BLC006",
    "more than one document",
    "A spec is one model. A line of three dashes starts another document, a line of three dots ends the only one; "
    "what follows would be read by some tools and dropped by others.",
    bad="blockc: 1\nname: one\n---\nblockc: 1\nname: two\n",
    good="blockc: 1\nname: one\n",
    alone=True,
)
CAP = error(
    "BLC007",
    "larger or deeper than a spec may be",
    "A spec holds at most 10,000 keys and values, aliases expanded, and nests at most 64 deep. Short texts can stand "
    "for more than any machine holds; the caps end them at once.",
    bad="block: " + "[" * 70 + "attention" + "]" * 70 + "\n",
    good="block: [[attention, mlp]]\nnorm: {type: rms, eps: 1e-5}\n",
)
SYNTAX = error(
    "BLC010",
    "this is not YAML",
    "The text breaks a rule of YAML that has no code of its own. Nothing after it can be read.",
    bad="description: |two\n  layers\n",
    good="description: |\n  two layers\n",
)
TAB = error(
    "BLC011",
    "a tab where YAML has spaces",
    "YAML indents with spaces alone: how wide a tab is, is a setting of the editor.",
    bad="attention:\n\theads: 4\n",
    good="attention:\n  heads: 4\n  rope: {theta: 10000, pairing: half}\n",
)
DUPLICATE_KEY = error(
    "BLC012",
    "a key stands twice",
    "Most YAML readers take the last of two equal keys and drop the first without a word; some take the first. Both "
    "lines are named: keep one.",
    bad="mlp: {type: swiglu, width: 192, width: 256}\n",
    good="mlp: {type: swiglu, width: 256}\n",
)
INDENTATION = error(
    "BLC013",
    "wrong indentation, or text after a value",
    "The keys of one mapping start in one column, and a quoted text or a closing bracket ends its value.",
    bad="mlp:\n    type: swiglu\n  width: 192\n",
    good="mlp:\n  type: swiglu\n  width: 192\n",
)
COLON = error(
    "BLC014",
    "a second ': ' in one value",
    "A colon and a space separate a key from its value. Where both belong to a text, the text is quoted.",
    bad="description: small: two layers\n",
    good='description: "small: two layers"\n',
)
KEY_WITHOUT_VALUE = error(
    "BLC015",
    "a line that is neither key nor value",
    "A line of a mapping is a key, a colon, a space and a value.",
    bad="blockc: 1\nname example\nvocab: 1024\n",
    good="blockc: 1\nname: example\n",
)
BRACKET = error(
    "BLC016",
    "a comma or a closing bracket is missing",
    "A list or a mapping in brackets ends with the bracket that it began with, its entries separated by commas. "
    "Where one is missing is only seen later: the place where the brackets began is named too.",
    bad="mlp: {type: swiglu, width: 192\n",
    good="mlp: {type: swiglu, width: 192}\n",
)
VALUE_MISSING = error(
    "BLC017",
    "a value is missing",
    "A bracket or the end stands where a value should.",
    bad="mlp: ]\n",
    good="mlp: {type: swiglu, width: 192}\n",
)
QUOTE = error(
    "BLC018",
    "a quote is not closed",
    "A quoted text ends with the quote that it began with. An apostrophe in single quotes is written twice.",
    bad="description: 'two layers\n",
    good="description: 'two layers'\n",
)
ESCAPE = error(
    "BLC019",
    "an escape that stands for no character",
    "In double quotes a backslash begins an escape; one that YAML does not know, or that names no character of "
    "Unicode, is refused.",
    bad='description: "C:\\qwen"\n',
    good='description: "C:\\\\qwen"\n',
)
START = error(
    "BLC020",
    "nothing can start here",
    "A value cannot start with @, ` or %, nor a list entry or a key in the middle of a line.",
    bad="description: @home\n",
    good='description: "@home"\n',
)
TAG = error(
    "BLC021",
    "a tag",
    "A tag asks the reader to make an object of some type, which may run code. A spec holds only words, numbers, "
    "lists and mappings; nothing of a tag is run.",
    bad="name: !!python/object/apply:os.system [id]\n",
    good="name: example\n",
)
DIRECTIVE = error(
    "BLC022",
    "a directive",
    "A line that starts with % tells a YAML reader to read otherwise. A spec is read in one way.",
    bad="%YAML 1.1\n---\nblockc: 1\n",
    good="blockc: 1\n",
    alone=True,
)
MERGE_KEY = error(
    "BLC023",
    "a merge key",
    "<<: copies the keys of another mapping. YAML 1.2 has no such key, and readers disagree on which key wins. "
    "Variations of layers are said by layers.kinds.",
    bad="mlp: &mlp {type: swiglu, width: 192}\nparts: {wide: {mlp: {<<: *mlp, width: 256}}}\n",
    good="mlp: {type: swiglu, width: 192}\n",
)
ANCHOR = error(
    "BLC024",
    "an anchor that cannot stand here",
    "An anchor names one value: no two share a name, and none names a key.",
    bad="attention: &a {heads: 4, rope: {theta: 10000, pairing: half}}\nmlp: &a {type: swiglu, width: 192}\n",
    good="mlp: &a {type: swiglu, width: 192}\n",
)
ALIAS = error(
    "BLC025",
    "an alias of nothing, or of what it is in",
    "An alias repeats a value that was named before it and has ended; it is no key.",
    bad="parts: &p {wide: *p}\n",
    good="width: &w 192\nmlp: {type: swiglu, width: *w}\n",
)
ASSIGNMENT = error(
    "BLC030",
    "not an assignment",
    "--set takes path.to.key=value on one line: words joined by dots, and one value in YAML's flow style.",
    bad="$ blockc check example.yaml --set norm.placement",
    good="$ blockc check example.yaml --set norm.placement=post",
)
NO_KEYS_BELOW = error(
    "BLC031",
    "a key cannot be set below a plain value",
    "The path of --set goes through a number, a word or a list, which has no keys.",
    bad="$ blockc check example.yaml --set width.size=128",
    good="$ blockc check example.yaml --set width=128",
)
