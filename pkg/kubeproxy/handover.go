package kubeproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/conntrack"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// handoverTable has connections translated when the chains that set them up are gone: those
// of kube-proxy, when Beeline has taken over, and those by which a CNI plugin masquerades pods,
// which it may remove and make again when it is restarted.
//
// The kernel translates the packets of a known connection only while its network
// namespace has a chain of NAT, and knows connections only while a rule asks for
// them (nf_nat_unregister_fn, nf_ct_netns_put): without kube-proxy, nobody else may have
// either. The table has one of each and does nothing else.
const handoverTable = "beeline-handover"

// holdConnections makes the table of a family.
func (s *nftSession) holdConnections(f family) error {
	table := s.AddTable(&nftables.Table{Name: handoverTable, Family: f.id})
	chain := s.AddChain(&nftables.Chain{
		Name: "prerouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	s.FlushChain(chain)
	s.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
	}})
	if err := s.Flush(); err != nil {
		return fmt.Errorf("nftables: make table %s %s, without which connections that other rules translate would break with them: %w",
			f.name, handoverTable, err)
	}
	return nil
}

const (
	// followPeriod is how often the agent looks after its rules when nothing has changed.
	followPeriod = time.Minute
	// changePeriod is how often it looks whether something has.
	changePeriod = 2 * time.Second
	// followShare is how much longer than a look the pause after it is: much changes while
	// kube-proxy runs, and has many chains.
	followShare = 50
)

// Follow has the tables "beeline-handover" where other rules translate connections, removes
// them as soon as nothing needs them and, with accept, makes the chains of [Accept] again when a
// firewall has removed them; until ctx ends.
func Follow(ctx context.Context, accept bool) {
	var seen version
	var due time.Time
	for wait := time.Duration(0); pause.For(ctx, wait); {
		took := pause.Work(func() {
			now := currentVersion()
			if now == seen && time.Now().Before(due) {
				return
			}
			seen, due = now, time.Now().Add(followPeriod)
			look(ctx, accept)
		})
		wait = max(changePeriod, followShare*took)
	}
}

// look is one step of [Follow].
func look(ctx context.Context, accept bool) {
	if accept {
		made, err := Accept(ctx)
		if err != nil {
			klog.ErrorS(err, "A firewall may drop connections of Services", "chain", acceptChain)
		} else if made > 0 {
			klog.InfoS("Let connections of Services through the firewall", "chain", acceptChain, "tables", made)
		}
	}
	if err := hold(); err != nil {
		klog.ErrorS(err, "Connections that netfilter translates may break when the rules that set them up are removed", "table", handoverTable)
	}
}

// version tells that rules have changed.
type version struct {
	nft    uint32 // the generation of the ruleset
	legacy [2]int // how many rules the tables nat of iptables-legacy have, by family
}

// currentVersion returns what can be read of it: the rules are looked at once in
// [followPeriod] anyway, which tells of errors.
func currentVersion() (v version) {
	if s, err := dialGeneration(); err == nil {
		v.nft, _ = s.read()
		_ = s.Close()
	}
	for i, f := range legacyFamilies {
		v.legacy[i], _ = f.natRules()
	}
	return v
}

// hold makes the table in the families in which other rules translate connections, and
// releases it in the others.
func hold() error {
	return eachFamily(func(s *nftSession, f family, legacy legacyFamily) error {
		table, err := s.findTable(f, handoverTable)
		if err != nil {
			return err
		}
		others, err := s.translates(f, legacy)
		if err != nil || others == (table != nil) {
			return err
		}
		if others {
			return s.holdConnections(f)
		}
		if _, err = s.release(f); errors.Is(err, conntrack.ErrNoList) {
			return nil // it stays
		}
		return err
	})
}

// Release removes the tables "beeline-handover" of the families in which other rules
// translate connections, or no translated one is left, and returns how many connections need the
// others. Zero says that there is no such table. The error is [conntrack.ErrNoList] where that cannot be told.
func Release() (connections int, err error) {
	err = eachFamily(func(s *nftSession, f family, legacy legacyFamily) error {
		table, err := s.findTable(f, handoverTable)
		if table == nil || err != nil {
			return err
		}
		others, err := s.translates(f, legacy)
		if err != nil {
			return err
		}
		if others {
			_, err = s.deleteTable(f, handoverTable)
			return err
		}
		count, err := s.release(f)
		connections += count
		return err
	})
	return connections, err
}

// eachFamily calls do with each family of nf_tables; a kernel that has none is fine.
func eachFamily(do func(*nftSession, family, legacyFamily) error) error {
	session, err := openNFT()
	if err != nil {
		return err
	}
	defer session.close()
	var errs []error
	for i, f := range families {
		if err := do(session, f, legacyFamilies[i]); !errors.Is(err, errNoNFTables) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// translates reports whether chains of NAT other than that of the table have rules, and so
// keep connections known and translated. A chain without rules does not: iptables leaves such.
func (s *nftSession) translates(f family, legacy legacyFamily) (bool, error) {
	if count, err := legacy.natRules(); count > 0 || err != nil {
		return count > 0, err
	}
	all, err := whole(s, s.ListChains)
	if err != nil {
		return false, fmt.Errorf("nftables: list the chains: %w", err)
	}
	for _, chain := range all {
		table := chain.Table
		if chain.Type != nftables.ChainTypeNAT || chain.Hooknum == nil || table.Name == handoverTable ||
			table.Family != f.id && table.Family != nftables.TableFamilyINet {
			continue
		}
		rules, err := whole(s, func() ([]*nftables.Rule, error) { return s.GetRules(table, chain) })
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return false, fmt.Errorf("nftables: list the rules of table %s chain %s: %w", table.Name, chain.Name, err)
		}
		if len(rules) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// release removes the table when no translated connection is left.
func (s *nftSession) release(f family) (connections int, err error) {
	connections, err = translated(f)
	if connections > 0 || err != nil {
		return connections, err
	}
	_, err = s.deleteTable(f, handoverTable)
	return 0, err
}

// translated counts the connections that are translated.
func translated(f family) (count int, err error) {
	count, err = rtnl.Complete(func() (int, error) {
		list := 0
		err := conntrack.Each(uint8(f.id), 0, func(attrs []syscall.NetlinkRouteAttr) error {
			if isTranslated(attrs) {
				list++
			}
			return nil
		})
		return list, err
	})
	if err != nil && !errors.Is(err, conntrack.ErrNoList) {
		return 0, fmt.Errorf("conntrack: list the connections of family %s: %w", f.name, err)
	}
	return count, err
}

// isTranslated reports whether a connection of such attributes is translated in any direction.
func isTranslated(attrs []syscall.NetlinkRouteAttr) bool {
	for _, a := range attrs {
		if a.Attr.Type == nl.CTA_STATUS && len(a.Value) >= 4 {
			return binary.BigEndian.Uint32(a.Value)&(conntrack.SourceTranslated|conntrack.DestinationTranslated) != 0
		}
	}
	return false
}
