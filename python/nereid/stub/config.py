"""A model's configuration, as auto_complete_config gets it to fill in."""

import json
from typing import Any, Dict, List

_INPUT_PROPERTIES = ("name", "data_type", "dims", "optional")
_OUTPUT_PROPERTIES = ("name", "data_type", "dims")


class ModelConfig:
    """The configuration of a model. What a person has written in it stays, and what contradicts it is a ValueError."""

    def __init__(self, model_config: str) -> None:
        self._model_config: Dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> Dict[str, Any]:
        """Return the configuration, to be read."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch size; it may not be below the configured one."""
        configured = self._model_config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                "configuration specified max_batch_size %s, but in auto-complete-config function for model '%s' "
                "specified max_batch_size %s" % (configured, self._name(), max_batch_size)
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Have the model batched dynamically, unless that is configured already."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._model_config:
                raise ValueError(
                    "Configuration specified scheduling_choice as '%s', but auto-complete-config function for model '%s' "
                    "tries to set scheduling_choice as 'dynamic_batching'" % (other, self._name())
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Dict[str, Any]) -> None:
        """Add an input, with name, data_type, dims and, if it is so, optional; one that is configured must agree."""
        self._add("input", input, _INPUT_PROPERTIES)

    def add_output(self, output: Dict[str, Any]) -> None:
        """Add an output, with name, data_type and dims; one that is configured must agree."""
        self._add("output", output, _OUTPUT_PROPERTIES)

    def set_model_transaction_policy(self, transaction_policy_dict: Dict[str, Any]) -> None:
        """Set whether the model is decoupled: {"decoupled": True}."""
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ValueError(
                    "model transaction property in auto-complete-config function for model '%s' contains property other than "
                    "'decoupled'." % self._name()
                )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", decoupled) != decoupled:
            raise ValueError(
                "trying to change decoupled property in auto-complete-config for model '%s', which is already set to '%s'."
                % (self._name(), policy["decoupled"])
            )
        policy["decoupled"] = decoupled

    def _name(self) -> str:
        return str(self._model_config.get("name", ""))

    def _add(self, kind: str, added: Dict[str, Any], properties: Any) -> None:
        self._check(kind, added, properties)
        configured: List[Dict[str, Any]] = self._model_config.setdefault(kind, [])
        for present in configured:
            if present["name"] == added["name"]:
                self._check_agreement(kind, present, added)
                present.update(added)
                return
        configured.append(added)

    def _check(self, kind: str, added: Dict[str, Any], properties: Any) -> None:
        for key in added:
            if key not in properties:
                listed = "', '".join(properties[:-1])
                raise ValueError(
                    "%s '%s' in auto-complete-config function for model '%s' contains property other than '%s' and '%s'."
                    % (kind, added.get("name", ""), self._name(), listed, properties[-1])
                )
        for key in _OUTPUT_PROPERTIES:
            if key not in added:
                which = "%s '%s'" % (kind, added["name"]) if key != "name" else kind
                raise ValueError(
                    "%s in auto-complete-config function for model '%s' is missing '%s' property." % (which, self._name(), key)
                )

    def _check_agreement(self, kind: str, present: Dict[str, Any], added: Dict[str, Any]) -> None:
        datatype = present.get("data_type", "TYPE_INVALID")
        if datatype not in ("TYPE_INVALID", added["data_type"]):
            raise ValueError(
                "unable to load model '%s', configuration expects datatype %s for %s '%s', model provides %s"
                % (self._name(), datatype, kind, added["name"], added["data_type"])
            )
        for key in ("dims", "optional"):
            configured = present.get(key)
            known = bool(configured) if key == "dims" else key in present and key in added
            if known and configured != added[key]:
                raise ValueError(
                    "model '%s', tensor '%s': the model expects %s %s but the model configuration specifies %s %s"
                    % (self._name(), added["name"], key, added[key], key, configured)
                )
