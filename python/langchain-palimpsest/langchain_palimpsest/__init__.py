"""A chat model for `palimpsest serve`: documents stay apart, and attention, causes and citations come with the message."""

from .chat import ChatPalimpsest, PalimpsestError
from .documents import DocumentUse, document_uses

__all__ = ["ChatPalimpsest", "DocumentUse", "PalimpsestError", "document_uses"]
