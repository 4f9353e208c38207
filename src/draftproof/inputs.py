"""What callers give as a prompt, and the tokens it stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jinja2 import TemplateError

from .sampling import check_integer

Message = Mapping[str, Any]
"""{"role": ..., "content": a text, or a list of {"type": "text", "text": ...}}."""

Prompt = str | Sequence[int] | Mapping[str, Any] | Sequence[Message]
"""A text, continued as it is; its tokens; {"prompt": text} or {"prompt_token_ids": tokens}, as vLLM has them; or a
conversation, which goes through the chat template."""


def tokens_of(prompt: Prompt, tokenizer: Any, vocab_size: int) -> list[int]:
    """Tokens, all of them in the vocabulary and at least one."""
    if isinstance(prompt, str):
        return text_tokens(prompt, tokenizer)
    if isinstance(prompt, Mapping):
        return _of_mapping(prompt, tokenizer, vocab_size)
    given: Any = prompt
    return chat_tokens(given, tokenizer) if is_conversation(given) else _checked(given, vocab_size)


def _checked(given: Any, vocab_size: int) -> list[int]:
    try:
        if isinstance(given, str | bytes | Mapping):
            raise TypeError
        ids: list[Any] = list(given)
    except TypeError:
        raise ValueError(f"prompt: {given!r} is not allowed; it must be a text, tokens or messages") from None
    if not ids:
        raise ValueError("prompt: it has no tokens; it must have at least one")
    ids = [token.item() if isinstance(token, np.integer) else token for token in ids]
    for token in ids:
        check_integer("prompt", token, lambda token: 0 <= token < vocab_size, f"in 0 .. {vocab_size - 1}, a token id")
    return ids


def text_tokens(prompt: str, tokenizer: Any) -> list[int]:
    """A text as it is, with the special tokens that the tokenizer puts around one."""
    require_text("prompt", prompt)
    ids = tokenizer(prompt).input_ids
    if not ids:
        raise ValueError(f"prompt: {prompt!r} makes no tokens; give some text")
    return ids


def chat_tokens(
    messages: Sequence[Message],
    tokenizer: Any,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    template_options: Mapping[str, Any] = MappingProxyType({}),
) -> list[int]:
    """A conversation -> tokens, ready for the model's answer, or for the rest of its last message. template_options:
    what the template reads besides."""
    if not tokenizer.chat_template:
        raise ValueError("messages: the model has no chat template; give it plain prompts")
    plain = [_plain(i, message) for i, message in enumerate(messages)]
    if not plain:
        raise ValueError("messages: there are none; give at least one")
    try:
        text = tokenizer.apply_chat_template(
            plain,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tokenize=False,
            **template_options,
        )
    except (TemplateError, ValueError) as error:  # some templates refuse a system message
        raise ValueError(f"messages: the model's chat template refuses them: {error}") from error
    return tokenizer(text, add_special_tokens=False).input_ids


def text_of(prompt: Prompt) -> str | None:
    """The text that a prompt is, if it is one."""
    return prompt if isinstance(prompt, str) else prompt.get("prompt") if isinstance(prompt, Mapping) else None


def is_conversation(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes) and any(map(_is_message, prompt[:1]))


def require_text(name: str, given: object) -> None:
    if not isinstance(given, str):
        raise ValueError(f"{name}: {given!r} is not allowed; it must be a string")
    if not given:
        raise ValueError(f"{name}: it is empty; give some text")
    require_unicode(name, given)


def require_unicode(name: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: it is not valid Unicode text at character {error.start}") from None


def _is_message(found: Any) -> bool:
    return isinstance(found, Mapping) and "role" in found


def _of_mapping(prompt: Mapping[str, Any], tokenizer: Any, vocab_size: int) -> list[int]:
    if _is_message(prompt):
        raise ValueError(f"prompt: {prompt!r} is a message; use chat for a conversation")
    known = {"prompt", "prompt_token_ids"}
    for key in prompt:
        if key not in known:
            raise ValueError(f"prompt: unknown key {key!r}; known are prompt, prompt_token_ids")
    if "prompt_token_ids" in prompt:
        return _checked(prompt["prompt_token_ids"], vocab_size)
    if "prompt" not in prompt:
        raise ValueError("prompt: {} is not allowed; it must have prompt or prompt_token_ids")
    return text_tokens(prompt["prompt"], tokenizer)


def _plain(i: int, message: Message) -> dict[str, Any]:
    """A message whose content is a text."""
    name = f"messages[{i}]"
    if not _is_message(message):
        raise ValueError(f"{name}: {message!r} is not allowed; it must be a dict with role and content")
    content = message.get("content")
    if isinstance(content, list):
        for part in content:
            if not (isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)):
                raise ValueError(f"{name}: {part!r} is not allowed; a part must be of type text")
        content = "\n".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError(f"{name}: content {content!r} is not allowed; it must be a text, or a list of text parts")
    require_unicode(name, content)
    return {**message, "content": content}
