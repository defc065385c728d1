package kubeproxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Dropping names the chains of nftables in hook forward that drop all packets of new connections to
// endpoints on this node, and the IP family, of those that are asked for. The packets have [ForwardMark],
// come from addresses outside of the cluster's, and in by one of the devices, which are given by name with their
// index. What is accepted in another table does not help there, so [Accept] cannot.
//
// A chain is not named if a rule may accept some of them before, such as by the endpoint's address or port: the
// administrator has thought of them. FORWARD of iptables is Accept's. The network namespace is that
// of the calling thread; nothing is changed.
func Dropping(ipv4, ipv6 bool, devices map[string]int, cluster []netip.Prefix) (list []string, err error) {
	session, err := openNFT()
	if err != nil {
		return nil, err
	}
	defer session.close()
	bases, err := session.forwardChains()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) { // without nf_tables
		return nil, nil
	}
	var errs []error
	for _, base := range bases {
		for _, f := range []struct {
			asked, ipv6 bool
			name        string
			id          nftables.TableFamily
		}{
			{ipv4, false, "IPv4", nftables.TableFamilyIPv4},
			{ipv6, true, "IPv6", nftables.TableFamilyIPv6},
		} {
			if !f.asked || base.Table.Family != f.id && base.Table.Family != nftables.TableFamilyINet {
				continue
			}
			w := walk{session: session, table: base.Table, packets: marked{f.ipv6, devices, cluster}, left: walkChains}
			what, err := w.base(base)
			errs = append(errs, err)
			if err == nil && what == dropped {
				list = append(list, fmt.Sprintf("%s %s %s (%s)", familyName(base.Table.Family), base.Table.Name, base.Name, f.name))
			}
		}
	}
	return list, errors.Join(append(errs, err)...)
}

// forwardChains lists the base chains of filters in hook forward.
func (s *nftSession) forwardChains() ([]*nftables.Chain, error) {
	all, err := whole(s, s.ListChains)
	return slices.DeleteFunc(all, func(c *nftables.Chain) bool {
		return c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookForward || familyName(c.Table.Family) == "" ||
			c.Table.Name == "filter" && c.Name == forwardChain && c.Table.Family != nftables.TableFamilyINet
	}), err
}

// familyName returns the name of a family of IP as nft has it.
func familyName(id nftables.TableFamily) string {
	switch id {
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	case nftables.TableFamilyINet:
		return "inet"
	}
	return ""
}

// outcomes are what a chain may do with the packets.
type outcomes uint8

const (
	dropped outcomes = 1 << iota
	accepted
	passed   // goes on behind the rule
	returned // goes on behind the rule that led to the chain
)

// walkChains is how many chains are read for one base chain; that there are more says nothing.
const walkChains = 500

// walk follows packets through the chains of a table.
type walk struct {
	session *nftSession
	table   *nftables.Table
	packets marked
	left    int
	depth   int
}

// base returns what a base chain may do.
func (w *walk) base(c *nftables.Chain) (outcomes, error) {
	result, err := w.chain(c.Name)
	if result&(passed|returned) != 0 {
		result &^= passed | returned
		if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
			result |= dropped
		} else {
			result |= accepted
		}
	}
	return result, err
}

// chain returns what a chain may do.
func (w *walk) chain(name string) (result outcomes, err error) {
	const nested = 16 // NFT_JUMP_STACK_SIZE of the kernel
	if w.left--; w.left < 0 || w.depth > nested {
		return accepted | dropped | returned, nil
	}
	w.depth++
	defer func() { w.depth-- }()
	rules, err := whole(w.session, func() ([]*nftables.Rule, error) {
		return w.session.GetRules(w.table, &nftables.Chain{Table: w.table, Name: name})
	})
	if changes(err) {
		return accepted | dropped | returned, nil
	}
	if err != nil {
		return 0, fmt.Errorf("nftables: list the rules of table %s chain %s: %w", w.table.Name, name, err)
	}
	for _, r := range rules {
		what, err := w.rule(r)
		if err != nil {
			return 0, err
		}
		result |= what &^ passed
		if what&passed == 0 {
			return result, nil
		}
	}
	return result | returned, nil
}

// changes reports whether an error says that the rules are being changed: what was to be read is gone, or never
// the same from beginning to end. The next look sees what has become of it.
func changes(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, netlink.ErrDumpInterrupted)
}

// rule returns what a rule may do.
func (w *walk) rule(r *nftables.Rule) (outcomes, error) {
	registers := make(map[uint32]value)
	result := outcomes(0) // of those packets that go no further in this rule
	for _, e := range r.Exprs {
		what, err := w.verdict(e, registers)
		if err != nil || what != 0 && what&passed == 0 {
			return result | what, err
		}
		result |= what
		if what != 0 {
			continue
		}
		matches := maybe
		if set, ok := e.(*expr.Lookup); ok {
			matches, err = w.lookup(set, registers)
		} else {
			matches = match(e, registers, &w.packets)
		}
		if err != nil {
			return 0, err
		}
		switch matches {
		case no:
			return result | passed, nil
		case maybe:
			result |= passed
		}
	}
	return result | passed, nil
}

// verdict returns what an expression does that ends the rule, 0 for one that does not.
func (w *walk) verdict(e expr.Any, registers map[uint32]value) (outcomes, error) {
	switch e := e.(type) {
	case *expr.Verdict:
		return w.follow(e)
	case *expr.Reject:
		return dropped, nil
	case *expr.Queue, *expr.Target, *expr.SynProxy:
		return accepted | dropped | passed, nil
	case *expr.Lookup:
		const verdictRegister = 0
		if e.IsDestRegSet && e.DestRegister == verdictRegister {
			return w.verdictMap(e, registers[e.SourceRegister])
		}
	}
	return 0, nil
}

// follow returns what a verdict does.
func (w *walk) follow(v *expr.Verdict) (outcomes, error) {
	switch v.Kind {
	case expr.VerdictDrop:
		return dropped, nil
	case expr.VerdictJump, expr.VerdictGoto:
		result, err := w.chain(v.Chain)
		if v.Kind == expr.VerdictJump && result&returned != 0 {
			result = result&^returned | passed
		}
		return result, err
	case expr.VerdictReturn:
		return returned, nil
	case expr.VerdictContinue, expr.VerdictBreak:
		return passed, nil
	}
	return accepted, nil
}

// verdictMap returns what a map from a value to verdicts may do. One whose key is not known may do anything.
func (w *walk) verdictMap(e *expr.Lookup, key value) (outcomes, error) {
	elements, err := w.elements(e.SetName, key)
	if err != nil || elements == nil {
		return accepted | dropped | passed | returned, err
	}
	result := outcomes(0)
	found := no
	for i := range elements {
		is := key.equals(elements[i].Key)
		if is == no || elements[i].VerdictData == nil {
			continue
		}
		what, err := w.follow(elements[i].VerdictData)
		if err != nil {
			return 0, err
		}
		result |= what
		if found = maybe; is == yes {
			found = yes
			break
		}
	}
	if found != yes {
		result |= passed
	}
	return result, nil
}

// lookup says for which packets a set has what is looked for.
func (w *walk) lookup(e *expr.Lookup, registers map[uint32]value) (truth, error) {
	key := registers[e.SourceRegister]
	if e.IsDestRegSet {
		registers[e.DestRegister] = anything
		return maybe, nil
	}
	elements, err := w.elements(e.SetName, key)
	if err != nil || elements == nil {
		return maybe, err
	}
	result := key.all(func(w word) truth {
		in := no
		for i := range elements {
			in = max(in, w.equals(elements[i].Key))
		}
		return in
	})
	if e.Invert {
		result = result.not()
	}
	return result, nil
}

// elements returns those of a set, nil where they say nothing of a key: it is not known, or the set has more
// than single values.
func (w *walk) elements(name string, key value) ([]nftables.SetElement, error) {
	if len(key.words) == 0 {
		return nil, nil
	}
	set, err := w.session.GetSetByName(w.table, name)
	if changes(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nftables: read table %s set %s: %w", w.table.Name, name, err)
	}
	if set.Interval || set.Concatenation || set.Dynamic {
		return nil, nil
	}
	elements, err := w.session.GetSetElements(set)
	if changes(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nftables: read table %s set %s: %w", w.table.Name, name, err)
	}
	if slices.ContainsFunc(elements, func(e nftables.SetElement) bool { return len(e.Key) == 0 }) { // for all others
		return nil, nil
	}
	return append([]nftables.SetElement{}, elements...), nil
}
