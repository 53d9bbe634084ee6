from frontcode.coding import decode, encode

__all__ = ["decode", "encode"]
