package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// handoverTable has the connections that kube-proxy set up translated when its
// chains are gone.
//
// The kernel translates the packets of a known connection only while its network
// namespace has a chain of NAT, and knows connections only while a rule asks for
// them (nf_nat_unregister_fn, nf_ct_netns_put): without kube-proxy's rules there
// may be neither. The table has one of each and does nothing else.
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
		return fmt.Errorf("nftables: make table %s %s, without which connections that kube-proxy set up would break: %w",
			f.name, handoverTable, err)
	}
	return nil
}

// followPeriod is how often the agent looks after its rules.
const followPeriod = time.Minute

// Follow removes the tables "beeline-handover" as soon as nothing needs them and, with
// accept, makes the chains of [Accept] again when a firewall has removed them; until ctx ends.
func Follow(ctx context.Context, accept bool) {
	tick := time.NewTicker(followPeriod)
	defer tick.Stop()
	for {
		if accept {
			made, err := Accept(ctx)
			if err != nil {
				klog.ErrorS(err, "A firewall may drop connections of Services", "chain", acceptChain)
			} else if made > 0 {
				klog.InfoS("Let connections of Services through the firewall", "chain", acceptChain, "tables", made)
			}
		}
		if _, err := Release(); err != nil {
			klog.ErrorS(err, "The nftables table that holds connections of kube-proxy could not be removed", "table", handoverTable)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Release removes the tables "beeline-handover" of the families in which no
// translated connection is left, and returns how many connections need the others.
// Zero says that there is no such table.
func Release() (connections int, err error) {
	session, err := openNFT()
	if err != nil {
		return 0, err
	}
	defer session.close()
	var errs []error
	for _, f := range families {
		count, err := session.release(f)
		connections += count
		if !errors.Is(err, errNoNFTables) {
			errs = append(errs, err)
		}
	}
	return connections, errors.Join(errs...)
}

func (s *nftSession) release(f family) (connections int, err error) {
	table, err := s.findTable(f, handoverTable)
	if table == nil || err != nil {
		return 0, err
	}
	connections, err = translated(f)
	if connections > 0 || err != nil {
		return connections, err
	}
	_, err = s.deleteTable(f, handoverTable)
	return 0, err
}

// translated counts the connections with another destination than the client
// asked for.
func translated(f family) (int, error) {
	flows, err := rtnl.Complete(func() ([]*netlink.ConntrackFlow, error) {
		return netlink.ConntrackTableList(netlink.ConntrackTable, netlink.InetFamily(f.id))
	})
	if err != nil {
		return 0, fmt.Errorf("conntrack: list the connections of family %s: %w", f.name, err)
	}
	count := 0
	for _, c := range flows {
		if !c.Forward.DstIP.Equal(c.Reverse.SrcIP) || c.Forward.DstPort != c.Reverse.SrcPort {
			count++
		}
	}
	return count, nil
}
