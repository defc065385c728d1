package kubeproxy

import "slices"

// rule are the parts of a rule that show to which program it belongs.
type rule struct {
	// id names the rule in its chain: a handle, or where it is.
	id uint64
	// target is the chain that it leads to; empty when it ends otherwise.
	target  string
	comment string
}

// ruleset is one table of iptables.
type ruleset interface {
	name() string
	chains() []string
	rules(chain string) ([]rule, error)
}

// link is a rule in a chain of others that leads to one of kube-proxy's.
type link struct {
	chain string
	rule  uint64
}

// plan are the rules and chains to remove from a table.
type plan struct {
	links  []link
	chains []string
	// kept are chains of kube-proxy that others use.
	kept []use
}

// use is a chain of kube-proxy and the chain that leads to it.
type use struct{ chain, by string }

// empty reports whether nothing is to be removed.
func (p plan) empty() bool { return len(p.links) == 0 && len(p.chains) == 0 }

// makePlan looks for what kube-proxy made in a table.
//
// A chain of kube-proxy to which another program's rule jumps stays, with all that
// it leads to itself: the CNI plugin portmap, for example, can be told to use
// KUBE-MARK-MASQ. kube-proxy's own rules that lead there go all the same.
func makePlan(table ruleset) (plan, error) {
	var p plan
	var own []string
	var links []struct {
		link
		target string
	}
	uses := newUses(table)
	for _, chain := range table.chains() {
		if ownChain(table.name(), chain) {
			own = append(own, chain)
			continue
		}
		rules, err := table.rules(chain)
		if err != nil {
			return plan{}, err
		}
		for _, r := range rules {
			switch {
			case !ownChain(table.name(), r.target):
			case slices.Contains(jumpComments, r.comment):
				links = append(links, struct {
					link
					target string
				}{link{chain, r.id}, r.target})
			default:
				if err := uses.keep(r.target, chain); err != nil {
					return plan{}, err
				}
			}
		}
	}
	for _, l := range links {
		if l.target == postroutingChain && uses.marks() {
			continue
		}
		p.links = append(p.links, l.link)
	}
	for _, chain := range own {
		if !uses.has(chain) {
			p.chains = append(p.chains, chain)
		}
	}
	p.kept = uses.list
	return p, nil
}

// uses collects the chains of kube-proxy that have to stay.
type uses struct {
	table ruleset
	list  []use
	seen  map[string]bool
}

func newUses(table ruleset) *uses { return &uses{table: table, seen: make(map[string]bool)} }

func (u *uses) has(chain string) bool { return u.seen[chain] }

// marks reports whether another program has packets marked, which
// postroutingChain has to masquerade.
func (u *uses) marks() bool { return u.seen[markChain] }

// keep notes a chain and the chains it needs.
func (u *uses) keep(chain, by string) error {
	if u.seen[chain] {
		return nil
	}
	u.seen[chain] = true
	u.list = append(u.list, use{chain, by})
	if chain == markChain {
		if err := u.keep(postroutingChain, chain); err != nil {
			return err
		}
	}
	rules, err := u.table.rules(chain)
	if err != nil {
		return err
	}
	for _, r := range rules {
		if ownChain(u.table.name(), r.target) {
			if err := u.keep(r.target, chain); err != nil {
				return err
			}
		}
	}
	return nil
}
