"""The question whether a call may run, and what became of it, as assistant-ui holds both: one object at the call.

Its id there is the call's. What the two know alike is read from there; what only ours hold (who decided and when, how
long it waits, what a lasting answer is for) an export tells in full beside it.
"""

from typing import Any, Final, TypeVar, cast, get_args

from pydantic import ValidationError

from perdure.approval import (
    APPROVES,
    REASON_CHARS,
    ApprovalOption,
    ApprovalQuestion,
    ApprovalRequest,
    Decision,
)
from perdure.codec import Wire, clip
from perdure.import_fields import Fault, Json, each, flag, mapping, name, optional, text

_CHOICES: Final = 1_000
_KINDS: Final = {kind: kind.replace("_", "-") for kind in APPROVES}
_read_kinds: Final = {there: ours for ours, there in _KINDS.items()}
_displays: Final = get_args(ApprovalRequest.model_fields["display"].annotation)

Model = TypeVar("Model", bound=Wire)
Asked = tuple[ApprovalRequest | None, Decision | None]


def shown_approval(call_id: str, asked: Asked) -> Json | None:
    """The question and its decision as a client knows them; None if nothing is asked."""
    request, decision = asked
    if request is None:
        return None
    shown: Json = {
        "prompt": request.prompt or None,
        "display": None if request.display == "decision" else request.display,
        "allowFreeform": request.allow_freeform or None,
        "dismissible": request.dismissible or None,
        "options": [_shown_option(option) for option in request.options] or None,
        "questions": [_shown_question(question) for question in request.questions] or None,
    }
    if decision is not None:
        shown |= {
            "approved": decision.approved,
            "reason": decision.reason,
            "optionId": decision.option_id,
            "text": decision.text,
            "answers": _renamed(decision.answers, "option_ids", "optionIds"),
            "resolution": decision.resolution,
            "isAutomatic": decision.remembered or None,
        }
    return {"id": call_id, **_said(shown)}


def read_approval(fields: Json) -> Asked:
    """The question and its decision, None if there is none yet. Raises Fault."""
    display = text(fields, "display", "decision")
    request = ApprovalRequest(
        prompt=text(fields, "prompt", ""),
        display=cast("Any", display if display in _displays else "decision"),
        options=tuple(each(fields, "options", _read_option, _CHOICES)),
        questions=tuple(each(fields, "questions", _read_question, _CHOICES)),
        allow_freeform=flag(fields, "allowFreeform"),
        dismissible=flag(fields, "dismissible"),
    )
    approved = flag(fields, "approved") if fields.get("approved") is not None else None
    resolution = fields.get("resolution")
    if resolution not in (None, "cancelled", "expired"):
        raise Fault("must be cancelled or expired", ".resolution")
    if approved is None and resolution is None:
        return request, None
    decision = Decision(
        approved=approved,
        resolution=resolution,
        option_id=name(fields, "optionId") if fields.get("optionId") is not None else None,
        text=_short(fields, "text"),
        answers=_renamed(optional(fields, "answers"), "optionIds", "option_ids"),
        reason=_short(fields, "reason"),
        remembered=flag(fields, "isAutomatic"),
    )
    return request, decision


def exact_approval(call_id: str, fields: Json | None, own: Json) -> Asked:
    """What an export tells in full beside what it shows, as long as the two agree. Raises Fault."""
    try:
        asked = _model(ApprovalRequest, own.get("approval")), _model(Decision, own.get("decision"))
        if asked != (None, None) and shown_approval(call_id, asked) == fields:
            return asked
        return (None, None) if fields is None else read_approval(fields)
    except Fault as fault:
        raise fault.under(".approval") from None
    except ValidationError as error:
        raise Fault(f"is not one of ours: {clip(error.errors()[0]['msg'], 200)}", ".approval") from None


def _model(kind: type[Model], value: object) -> Model | None:
    return None if value is None else kind.model_validate(mapping(value))


def _shown_option(option: ApprovalOption) -> Json:
    shown = {
        "id": option.id,
        "kind": _KINDS.get(option.kind, option.kind),
        "label": option.label or None,
        "description": option.description,
        "confirm": option.confirm or None,
    }
    return _said(shown)


def _read_option(fields: Json) -> ApprovalOption:
    kind = text(fields, "kind", "allow_once")
    confirm = fields.get("confirm")
    return ApprovalOption(
        id=name(fields, "id"),
        kind=_read_kinds.get(kind, kind),
        label=text(fields, "label", ""),
        description=text(fields, "description") if fields.get("description") is not None else None,
        # What others mean by their grants nobody can tell, so a lasting answer is for the least: these very arguments.
        grants="arguments",
        confirm=confirm is not None and confirm is not False,
    )


def _shown_question(question: ApprovalQuestion) -> Json:
    shown = {
        "id": question.id,
        "header": question.header,
        "options": [_shown_option(option) for option in question.options] or None,
        "multiple": question.multiple or None,
        "allowFreeform": question.allow_freeform or None,
    }
    return {"prompt": question.prompt, **_said(shown)}


def _read_question(fields: Json) -> ApprovalQuestion:
    return ApprovalQuestion(
        id=name(fields, "id"),
        prompt=text(fields, "prompt", ""),
        header=text(fields, "header") if fields.get("header") is not None else None,
        options=tuple(each(fields, "options", _read_option, _CHOICES)),
        multiple=flag(fields, "multiple"),
        allow_freeform=flag(fields, "allowFreeform"),
    )


def _renamed(answers: Json | None, key: str, name: str) -> Json | None:
    """The answers to questions, with one field of each under another name."""
    if answers is None:
        return None
    return {
        question: {name if one == key else one: value for one, value in cast("Json", answer).items()}
        if isinstance(answer, dict)
        else answer
        for question, answer in answers.items()
    }


def _said(fields: dict[str, Any]) -> Json:
    return {key: value for key, value in fields.items() if value is not None}


def _short(fields: Json, key: str) -> str | None:
    return text(fields, key)[:REASON_CHARS] if fields.get(key) is not None else None
