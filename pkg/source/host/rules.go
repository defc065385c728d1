package host

import (
	"context"
	"errors"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// rulesInterval passes between two reads of the rules at most.
const rulesInterval = time.Second

// FollowRules tells at once, soon after changes and every second whether rules of routing look at who sends, until
// ctx ends: see [RulesByClient]. Where that cannot be seen, they do.
//
// It follows the network namespace of the calling thread.
func FollowRules(ctx context.Context, tell func(byClient bool) error) {
	logged := false
	rtnl.Follow(ctx, rtnl.Handlers{Rules: true}, nil, func(bool) time.Duration {
		byClient, err := RulesByClient()
		if err = errors.Join(err, tell(byClient || err != nil)); err != nil && !logged {
			klog.ErrorS(err, "The rules of routing are not known; the route is looked up for each new flow")
		}
		logged = err != nil
		return rulesInterval
	})
}

// RulesByClient reports whether a rule of routing (ip-rule(8)) of the calling thread's network namespace can lead
// packets to one address by different devices, by their source or the device that they come in by: a rule
// with such a selector, or that for devices of VRFs, which names no table.
func RulesByClient() (bool, error) {
	rules, err := rtnl.Complete(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_ALL) })
	if err != nil {
		return false, err
	}
	for i := range rules {
		r := &rules[i]
		if r.Src != nil || r.IifName != "" || r.Table == 0 && r.Goto < 0 {
			return true, nil
		}
	}
	return false, nil
}
