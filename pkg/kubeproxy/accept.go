package kubeproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
)

// acceptChain lets connections of Services through a firewall of iptables that drops
// what it does not know, as KUBE-FORWARD did: packets of connections that are known,
// and those marked with [ForwardMark].
const acceptChain = "BEELINE-FORWARD"

// forwardChain is where firewalls look at what the node passes on.
const forwardChain = "FORWARD"

// ForwardMark is the bit of a packet's mark that says that Beeline translated it to
// a backend on this node.
const ForwardMark = 0x1000

// ctStates are RELATED and ESTABLISHED as iptables' match conntrack has them, see
// XT_CONNTRACK_STATE_BIT of linux/netfilter/xt_conntrack_common.h.
const ctStates = 1<<2 | 1<<1

// Accept makes the chain BEELINE-FORWARD, first in FORWARD, in each iptables of this
// network namespace that drops or rejects packets in FORWARD. It returns how many it
// made or made whole.
func Accept(ctx context.Context) (int, error) {
	session, err := openNFT()
	if err != nil {
		return 0, err
	}
	defer session.close()
	count := 0
	var errs []error
	for i, f := range families {
		for _, accept := range []func() (bool, error){
			func() (bool, error) { return session.accept(f) },
			func() (bool, error) { return acceptLegacy(ctx, legacyFamilies[i]) },
		} {
			made, err := accept()
			if made {
				count++
			}
			if !errors.Is(err, errNoNFTables) {
				errs = append(errs, err)
			}
		}
	}
	return count, errors.Join(errs...)
}

// removeAccept removes what [Accept] made.
func removeAccept(ctx context.Context, r *Report) error {
	session, err := openNFT()
	if err != nil {
		return err
	}
	defer session.close()
	var errs []error
	for i, f := range families {
		if err := session.removeAccept(f, r); !errors.Is(err, errNoNFTables) {
			errs = append(errs, err)
		}
		legacy := legacyFamilies[i]
		removed := false
		err := changeLegacyFilter(ctx, legacy, func(t *xtTable) bool {
			p := acceptPlan(t)
			t.drop(p)
			removed = !p.empty()
			return removed
		})
		if removed && err == nil {
			r.removed("chain %s of %s", acceptChain, legacy.name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// acceptPlan removes the chain and what leads to it.
func acceptPlan(t ruleset) plan {
	var p plan
	if slices.Contains(t.chains(), acceptChain) {
		p.chains = []string{acceptChain}
	}
	rules, _ := t.rules(forwardChain) // those of iptables-legacy are read already
	for _, r := range rules {
		if r.target == acceptChain {
			p.links = append(p.links, link{forwardChain, r.id})
		}
	}
	return p
}

// filter returns the table filter of iptables-nft with FORWARD and its rules; nil
// where there is none.
func (s *nftSession) filter(f family) (*nftTable, *nftables.Chain, []*nftables.Rule, error) {
	tables, err := s.iptables(f)
	if err != nil {
		return nil, nil, nil, err
	}
	i := slices.IndexFunc(tables, func(t *nftTable) bool { return t.name() == "filter" })
	if i < 0 || !slices.Contains(tables[i].names, forwardChain) {
		return nil, nil, nil, nil
	}
	t := tables[i]
	chain, err := s.ListChain(t.table, forwardChain)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("nftables: read %s chain %s: %w", t, forwardChain, err)
	}
	rules, err := t.list(forwardChain)
	return t, chain, rules, err
}

func (s *nftSession) accept(f family) (bool, error) {
	t, forward, rules, err := s.filter(f)
	if t == nil || err != nil {
		return false, err
	}
	drops := forward.Policy != nil && *forward.Policy == nftables.ChainPolicyDrop
	for _, r := range rules {
		if nftTarget(r) == acceptChain {
			return false, nil
		}
		drops = drops || nftDrops(r)
	}
	if !drops {
		return false, nil
	}
	chain := s.AddChain(&nftables.Chain{Name: acceptChain, Table: t.table})
	s.FlushChain(chain)
	for _, match := range [][]expr.Any{matchMark(), matchKnown(f)} {
		s.AddRule(&nftables.Rule{Table: t.table, Chain: chain,
			Exprs: append(match, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept})})
	}
	s.InsertRule(&nftables.Rule{Table: t.table, Chain: forward,
		Exprs: []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictJump, Chain: acceptChain}}})
	if err := s.Flush(); err != nil {
		return false, fmt.Errorf("nftables: make %s chain %s: %w", t, acceptChain, err)
	}
	return true, nil
}

func nftDrops(r *nftables.Rule) bool {
	return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		switch e := e.(type) {
		case *expr.Verdict:
			return e.Kind == expr.VerdictDrop
		case *expr.Reject:
			return true
		case *expr.Target:
			return e.Name == "REJECT"
		}
		return false
	})
}

// matchMark matches packets with [ForwardMark], in the words of iptables-nft.
func matchMark() []expr.Any {
	mark := binaryutil.NativeEndian.PutUint32(ForwardMark)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mark, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: mark},
	}
}

// matchKnown matches packets of known connections.
func matchKnown(f family) []expr.Any {
	info := &xt.ConntrackMtinfo3{}
	info.MatchFlags, info.StateMask = uint16(xt.ConntrackState), ctStates
	if f.id == nftables.TableFamilyIPv4 {
		zero := make([]byte, 4)
		for _, addr := range []*[]byte{
			(*[]byte)(&info.OrigSrcAddr), (*[]byte)(&info.OrigSrcMask), (*[]byte)(&info.OrigDstAddr), (*[]byte)(&info.OrigDstMask),
			(*[]byte)(&info.ReplSrcAddr), (*[]byte)(&info.ReplSrcMask), (*[]byte)(&info.ReplDstAddr), (*[]byte)(&info.ReplDstMask),
		} {
			*addr = zero
		}
	}
	return []expr.Any{&expr.Match{Name: "conntrack", Rev: 3, Info: info}}
}

func (s *nftSession) removeAccept(f family, r *Report) error {
	t, _, _, err := s.filter(f)
	if t == nil || err != nil {
		return err
	}
	p := acceptPlan(t)
	if p.empty() {
		return nil
	}
	if err := t.apply(p); err != nil {
		return err
	}
	r.removed("chain %s of %s", acceptChain, t)
	return nil
}

// conntrackMatch is struct xt_conntrack_mtinfo3 that matches known connections.
func conntrackMatch() []byte {
	const (
		size       = 164
		matchFlags = 146
		stateMask  = 150
	)
	info := make([]byte, size)
	binary.NativeEndian.PutUint16(info[matchFlags:], uint16(xt.ConntrackState))
	binary.NativeEndian.PutUint16(info[stateMask:], ctStates)
	return info
}
