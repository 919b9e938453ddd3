"""Text that can leave a rank: protobuf refuses lone surrogates, which file names and exceptions may hold."""


def encodable(text: str) -> str:
    """Return `text` with what UTF-8 can not encode written as escapes.

    Example:
        >>> encodable("caf\\u00e9 \\udc80")
        'caf\\u00e9 \\\\udc80'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
