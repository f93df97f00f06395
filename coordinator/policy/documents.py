"""What operators sign together, as files and as bodies of requests: budgets, rate cards, adjustments.

A document goes from one operator to the next as a file, gathers signatures offline, and is sent in
by any of them. Amounts are decimal strings, times UTC microseconds. Needs the base install only.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from coordinator.json_files import DuplicateKeyError, load_json
from ledger.budgets import Budget, BudgetError, Purpose, SignedBudget
from ledger.commands import Adjust, canonical_json
from ledger.ratecard import RateCard
from ledger.signatures import signed_message
from node_agent.protocol.signing import decode_bytes, encode_bytes

SIGNATURES_MAX: Final = 16
TIME_MAX_US: Final = 2**62

OperatorName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@+-]{1,100}$")]
Signature = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{86}$")]
Amount = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,18}$")]
SignedAmount = Annotated[str, Field(pattern=r"^-?[1-9][0-9]{0,18}$")]
TimeUs = Annotated[int, Field(ge=0, le=TIME_MAX_US)]


class DocumentError(ValueError):
    """A document that cannot be used; the text names the field and what to do."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BudgetText(_Part):
    """A budget, see `ledger.budgets.Budget`."""

    id: Annotated[str, Field(pattern=r"^budget_[0-9a-f]{32}$")]
    purpose: Purpose
    reason: Annotated[str, Field(min_length=1, max_length=200)]
    cap_umlx: Amount
    valid_from_us: TimeUs
    expires_us: TimeUs


class Leg(_Part):
    """A part of an adjustment: an account, and what it gets (or, with a minus, gives)."""

    account: Annotated[str, Field(max_length=128)]
    amount_umlx: SignedAmount


class AdjustmentText(_Part):
    """An adjustment, see `ledger.commands.Adjust`; `operators` are the two who sign it."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    reference: Annotated[str, Field(max_length=200)] = ""
    legs: Annotated[list[Leg], Field(min_length=2, max_length=256)]
    operators: Annotated[list[OperatorName], Field(min_length=2, max_length=2)]
    reason: Annotated[str, Field(min_length=1, max_length=200)]


class _Document(_Part):
    signatures: Annotated[dict[OperatorName, Signature], Field(max_length=SIGNATURES_MAX)] = {}

    @property
    @abstractmethod
    def message(self) -> bytes:
        """The bytes that operators sign. Raises DocumentError if the content is not allowed."""

    @property
    def signature_bytes(self) -> dict[str, bytes]:
        """The signatures as bytes, by operator."""
        return {name: decode_bytes(text) for name, text in self.signatures.items()}

    @property
    def digest(self) -> str:
        """SHA-256 of the document's canonical JSON, signatures included, in hex: what is logged."""
        return hashlib.sha256(canonical_json(self.model_dump(mode="json")).encode("ascii")).hexdigest()


class BudgetDocument(_Document):
    """Leave to mint."""

    kind: Literal["budget"] = "budget"
    budget: BudgetText

    @property
    def value(self) -> Budget:
        """The budget. Raises DocumentError."""
        text = self.budget
        try:
            return Budget(
                id=text.id,
                purpose=text.purpose,
                reason=text.reason,
                cap_umlx=int(text.cap_umlx),
                valid_from_us=text.valid_from_us,
                expires_us=text.expires_us,
            )
        except BudgetError as error:
            raise DocumentError(f"budget: {error}") from None

    @property
    def signed(self) -> SignedBudget:
        """The budget with its signatures. Raises DocumentError."""
        return SignedBudget(self.value, self.signature_bytes)

    @property
    def message(self) -> bytes:
        """See `_Document`."""
        return self.value.message


class RateCardDocument(_Document):
    """A rate card and the moment from which it is to be in force."""

    kind: Literal["rate_card"] = "rate_card"
    card: dict[str, Any]
    effective_us: TimeUs

    @property
    def value(self) -> RateCard:
        """The card. Raises DocumentError."""
        try:
            return RateCard.from_body(json.dumps(self.card))
        except ValueError as error:
            raise DocumentError(f"card: {error}") from None

    @property
    def message(self) -> bytes:
        """See `_Document`."""
        content = {"card": json.loads(self.value.body), "effective_us": self.effective_us}
        return signed_message("rate card", canonical_json(content))


class AdjustmentDocument(_Document):
    """A correction of the books."""

    kind: Literal["adjustment"] = "adjustment"
    adjustment: AdjustmentText

    @property
    def value(self) -> Adjust:
        """The ledger's command. Raises DocumentError."""
        text = self.adjustment
        first, second = text.operators
        try:
            return Adjust(
                id=UUID(text.id),
                reference=text.reference,
                legs=tuple((leg.account, int(leg.amount_umlx)) for leg in text.legs),
                operators=(first, second),
                reason=text.reason,
            )
        except ValueError as error:
            raise DocumentError(f"adjustment: {error}") from None

    @property
    def message(self) -> bytes:
        """See `_Document`."""
        return signed_message("adjustment", self.value.body)


Document = BudgetDocument | RateCardDocument | AdjustmentDocument
D = TypeVar("D", bound=_Document)
_ANY: Final[TypeAdapter[Document]] = TypeAdapter(Annotated[Document, Field(discriminator="kind")])


def read_document(path: Path) -> Document:
    """The document in a file. Raises DocumentError naming the file and the field, OSError."""
    content = path.read_bytes()
    try:
        with suppress(UnicodeDecodeError, json.JSONDecodeError):
            _ = load_json(content)
        document = _ANY.validate_json(content)
        _ = document.message
    except ValidationError as error:
        # The first part of the place is the kind that it was read as.
        raise DocumentError(f"{path}: {_first_of(error, skip=1)}") from None
    except (DocumentError, DuplicateKeyError) as error:
        raise DocumentError(f"{path}: {error}") from None
    return document


def write_document(path: Path, document: Document) -> None:
    """Write the document, in place of what was there."""
    partial = path.with_name(f"{path.name}.part")
    partial.write_text(json.dumps(document.model_dump(mode="json"), indent=1) + "\n", "utf-8")
    partial.replace(path)


def sign(document: D, name: str, key: Ed25519PrivateKey) -> D:
    """The document with the operator's signature added. Raises DocumentError."""
    signature = encode_bytes(key.sign(document.message))
    # Validated anew, so that a name that is none does not get in.
    whole = document.model_dump(mode="json")
    whole["signatures"] = {**document.signatures, name: signature}
    try:
        return type(document).model_validate(whole)
    except ValidationError as error:
        raise DocumentError(_first_of(error)) from None


def _first_of(error: ValidationError, skip: int = 0) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"][skip:]) or "kind"
    return f"{place}: {first['msg']}"
