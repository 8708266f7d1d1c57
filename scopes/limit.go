package scopes

import (
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

const (
	maxLimits      = 6 // a rate and a live count for each per
	maxLimitCount  = 1_000_000
	minLimitWindow = time.Second
)

var limitPers = []string{PerSandbox, PerTask, PerTrustDomain}

func (r *reader) limits(n *yaml.Node) []Limit {
	if n == nil {
		return nil
	}
	items := r.list(n, "limits")
	if len(items) > maxLimits {
		r.at(n, "limits: at most %d are allowed", maxLimits)
	}
	var limits []Limit
	for _, item := range items {
		limit, ok := r.limit(item)
		if !ok {
			continue
		}
		// A rate and a live count for the same per are separate limits.
		same := func(l Limit) bool { return l.Per == limit.Per && (l.Live > 0) == (limit.Live > 0) }
		if slices.ContainsFunc(limits, same) {
			r.at(item, "limits: per %s is listed twice; remove one", limit.Per)
		}
		limits = append(limits, limit)
	}
	return limits
}

func (r *reader) limit(n *yaml.Node) (Limit, bool) {
	fields := r.mapping(n, "limit", "per", "count", "window", "live")
	if fields == nil {
		return Limit{}, false
	}
	live := fields["live"] != nil
	rate, part := fields["count"] != nil && fields["window"] != nil, fields["count"] != nil || fields["window"] != nil
	if fields["per"] == nil || live == part || part && !rate {
		r.at(n, "a limit needs per, and either count and window or live, such as {per: sandbox, count: 60, window: 1h} or {per: sandbox, live: 5}")
		return Limit{}, false
	}
	per, okPer := r.text(fields["per"], "limit.per")
	if okPer && !slices.Contains(limitPers, per) {
		r.at(fields["per"], "limit.per %q is unknown; choose %s", per, strings.Join(limitPers, ", "))
	}
	if live {
		most, ok := r.integer(fields["live"], "limit.live", 1, maxLimitCount)
		return Limit{Per: per, Live: int(most)}, okPer && ok
	}
	count, okCount := r.integer(fields["count"], "limit.count", 1, maxLimitCount)
	window, okWindow := r.duration(fields["window"], "limit.window", minLimitWindow)
	return Limit{Per: per, Count: int(count), Window: window}, okPer && okCount && okWindow
}
