"""The search attributes by which threads are found in Temporal; `perdure migrate` and `perdure dev` register them."""

from typing import Final

from temporalio.common import SearchAttributeKey

AGENT: Final = SearchAttributeKey.for_keyword("PerdureAgent")
TENANT: Final = SearchAttributeKey.for_keyword("PerdureTenant")
STATE: Final = SearchAttributeKey.for_keyword("PerdureState")
PARENT: Final = SearchAttributeKey.for_keyword("PerdureParent")
ROOT: Final = SearchAttributeKey.for_keyword("PerdureRoot")
KIND: Final = SearchAttributeKey.for_keyword("PerdureKind")

SEARCH_ATTRIBUTES: Final = (AGENT, TENANT, STATE, PARENT, ROOT, KIND)
