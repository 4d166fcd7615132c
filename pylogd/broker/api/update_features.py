"""UpdateFeatures (57), versions 0 to 2: change the levels of features that the cluster uses (KIP-584).

Behaviour: any broker takes the request, and all brokers follow soon. All features of a request are changed, or none:
the first error is the error of the request. If a feature is named more than once, the last level counts. Level 0 ends
the use of a feature. INVALID_UPDATE_VERSION is the error for a feature that this broker does not know, for a level that
it or another live broker can't use, and for a lower level unless the request allows that. FEATURE_UPDATE_FAILED means
that another broker changed features at the same time. A client needs ALTER on the cluster.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain
from pylogd.broker.api.registry import handles
from pylogd.broker.metadata.feature_levels import SUPPORTED
from pylogd.broker.metadata.features import Features
from pylogd.broker.security.authorizer import AclOperation
from pylogd.store.errors import BadVersion, NodeExists
from pylogd.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_FIRST_WITH_TYPE = 1
_FIRST_WITHOUT_RESULTS = 2
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


@handles(UpdateFeaturesRequest, 0, 2)
def update_features(context: RequestContext, request: UpdateFeaturesRequest) -> Deferred[UpdateFeaturesResponse]:
    """Change the features of the request."""
    return Deferred.fromCoroutine(_update(context, request))


async def _update(context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    if not context.may_use_cluster(AclOperation.ALTER):
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return _answer(context, request, refused, refused.text)
    features = context.broker.metadata.features
    for update in request.feature_updates:
        fault = _fault(context, features, update)
        if fault is not None:
            text = f"{update.feature}: {fault}"
            return _answer(context, request, ErrorCode.INVALID_UPDATE_VERSION, text)
    if request.feature_updates and not request.validate_only:
        try:
            await features.update({one.feature: max(one.max_version_level, 0) for one in request.feature_updates})
        except (BadVersion, NodeExists):
            text = "Features were changed by another request at the same time; try again."
            return _answer(context, request, ErrorCode.FEATURE_UPDATE_FAILED, text)
        except PylogdError as error:
            return _answer(context, request, *explain(error))
    return _answer(context, request, ErrorCode.NONE, None)


def _fault(context: RequestContext, features: Features, update: FeatureUpdateKey) -> str | None:
    """Return the error message for an update that is not possible; None for one that is."""
    known = SUPPORTED.get(update.feature)
    if known is None:
        return "this broker does not know the feature"
    level, present = update.max_version_level, features.level(update.feature)
    if not known.lowest <= level <= known.highest:
        return f"this broker can use levels {known.lowest} to {known.highest}, not {level}"
    if level > features.most(update.feature):
        brokers = ", ".join(map(str, features.without(update.feature, level)))
        return f"brokers {brokers} can't use level {level}: upgrade them first"
    lowers = update.allow_downgrade
    if context.version >= _FIRST_WITH_TYPE:
        lowers = update.upgrade_type in (_SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE)
        if not lowers and update.upgrade_type != _UPGRADE:
            return f"{update.upgrade_type} is not a type of upgrade"
    if level < present and not lowers:
        return f"the level is {present}; a lower one has to be allowed by the type of upgrade"
    return None


def _answer(
    context: RequestContext, request: UpdateFeaturesRequest, error: ErrorCode, text: str | None
) -> UpdateFeaturesResponse:
    response = UpdateFeaturesResponse(error_code=error, error_message=text)
    if context.version < _FIRST_WITHOUT_RESULTS and not error:  # as in Kafka, an error has no results
        response.results = [UpdatableFeatureResult(one.feature, error, text) for one in request.feature_updates]
    return response
