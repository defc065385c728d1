package kubeproxy

import (
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/bounds"
)

// newRule is the type of netlink's messages that tell of a rule.
const newRule = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE

// ruleMessages returns what is sent to make rules as iptables-nft does.
func ruleMessages(f *testing.F) (list [][]byte) {
	f.Helper()
	conn, err := nftables.New(nftables.WithTestDial(func(requests []netlink.Message) ([]netlink.Message, error) {
		for _, r := range requests {
			if r.Header.Type == newRule {
				list = append(list, r.Data)
			}
		}
		return requests, nil
	}))
	if err != nil {
		f.Fatal(err)
	}
	table := &nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4}
	chain := &nftables.Chain{Name: forwardChain, Table: table}
	comment := xt.Comment("kubernetes forwarding rules")
	jump := &expr.Verdict{Kind: expr.VerdictJump, Chain: "KUBE-FORWARD"}
	for _, r := range []*nftables.Rule{
		{Exprs: []expr.Any{&expr.Match{Name: "comment", Info: &comment}, &expr.Counter{Packets: 7}, jump}},
		{Exprs: []expr.Any{jump}, UserData: userdata.AppendString(nil, userdata.TypeComment, "kubernetes forwarding rules")},
		{Exprs: append(matchMark(), &expr.Verdict{Kind: expr.VerdictDrop})},
		{Exprs: append(matchKnown(families[0]), &expr.Target{Name: "REJECT", Info: &xt.Unknown{0, 0, 0, 0}})},
		{Exprs: []expr.Any{&expr.Reject{Type: 1, Code: 2}}, UserData: []byte{0, 200, 'x'}},
	} {
		r.Table, r.Chain = table, chain
		conn.AddRule(r)
	}
	if err := conn.Flush(); err != nil {
		f.Fatal(err)
	}
	return list
}

// FuzzNFTRules: whatever the kernel tells of a rule, it ends in an error or in rules of
// which each has its place, and two readings are the same.
func FuzzNFTRules(f *testing.F) {
	for _, data := range ruleMessages(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 4 {
			return // the kernel always tells of the family
		}
		conn, err := nftables.New(nftables.WithTestDial(func(requests []netlink.Message) ([]netlink.Message, error) {
			return []netlink.Message{{
				Header: netlink.Header{Type: newRule, Sequence: requests[0].Header.Sequence, PID: requests[0].Header.PID},
				Data:   data,
			}}, nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			table := &nftTable{
				session: &nftSession{Conn: conn, generation: unchanged}, family: family,
				table: &nftables.Table{Name: "filter", Family: family.id},
			}
			bounds.Check(t, len(data), func() { wantRules(t, table) })
		}
	})
}

// unchanged is the generation of a ruleset that nobody changes.
func unchanged() (uint32, error) { return 1, nil }

// wantRules reads the rules of a chain.
func wantRules(t *testing.T, table *nftTable) {
	t.Helper()
	list, err := table.session.GetRules(table.table, table.chain(forwardChain))
	if err != nil {
		if _, err := table.rules(forwardChain); err == nil {
			t.Fatal("rules that cannot be read are there")
		}
		return
	}
	rules, err := table.rules(forwardChain)
	if err != nil || len(rules) != len(list) {
		t.Fatalf("%d rules of %d, %v", len(rules), len(list), err)
	}
	for i, r := range list {
		nftDrops(r)
		if rules[i].id != r.Handle || len(rules[i].comment) > 1<<16 {
			t.Fatalf("%+v is rule %d", rules[i], r.Handle)
		}
	}
}
