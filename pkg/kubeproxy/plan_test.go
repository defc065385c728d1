package kubeproxy

import (
	"fmt"
	"slices"
	"testing"
)

// fakeTable is a table whose rules are written as "target" or "target comment".
type fakeTable struct {
	table string
	order []string
	have  map[string][]rule
}

func (f *fakeTable) name() string     { return f.table }
func (f *fakeTable) chains() []string { return f.order }

func (f *fakeTable) rules(chain string) ([]rule, error) { return f.have[chain], nil }

// add adds a chain with rules whose ids count from 1.
func (f *fakeTable) add(chain string, rules ...rule) {
	f.order = append(f.order, chain)
	for i := range rules {
		rules[i].id = uint64(i + 1)
	}
	if f.have == nil {
		f.have = make(map[string][]rule)
	}
	f.have[chain] = rules
}

func TestOwnChain(t *testing.T) {
	for _, tc := range []struct {
		table, name string
		want        bool
	}{
		{"nat", "KUBE-SERVICES", true},
		{"filter", "KUBE-SERVICES", true},
		{"mangle", "KUBE-SERVICES", false},
		{"raw", "KUBE-PROXY-CANARY", false},
		{"nat", "KUBE-SVC-NPX46M4PTMTKRN6Y", true},
		{"filter", "KUBE-SVC-NPX46M4PTMTKRN6Y", false},
		{"nat", "KUBE-XLB-NPX46M4PTMTKRN6Y", true},
		{"nat", "KUBE-SVC-MINE", false},
		{"nat", "KUBE-SVC-npx46m4ptmtkrn6y", false},
		{"nat", "MY-KUBE-SVC-NPX46M4PTMTKRN6Y", false},
		{"nat", "KUBE-MARK-DROP", false},
		{"filter", "KUBE-FIREWALL", false},
		{"mangle", "KUBE-KUBELET-CANARY", false},
		{"mangle", "KUBE-IPTABLES-HINT", false},
	} {
		if got := ownChain(tc.table, tc.name); got != tc.want {
			t.Errorf("ownChain(%s, %s) = %t", tc.table, tc.name, got)
		}
	}
}

// TestPlanOfOwn: kube-proxy's rules are told from those of others by comment and
// target.
func TestPlanOfOwn(t *testing.T) {
	table := &fakeTable{table: "nat"}
	table.add("PREROUTING",
		rule{target: "MINE"},
		rule{target: "KUBE-SERVICES", comment: "kubernetes service portals"},
		rule{target: "MINE", comment: "kubernetes service portals"},
		rule{comment: "kubernetes service portals"})
	table.add("MINE", rule{})
	table.add("KUBE-SERVICES", rule{target: "KUBE-SVC-NPX46M4PTMTKRN6Y", comment: "default/web:http cluster IP"})
	table.add("KUBE-SVC-NPX46M4PTMTKRN6Y")
	p, err := makePlan(table)
	if err != nil {
		t.Fatal(err)
	}
	if want := []link{{"PREROUTING", 2}}; !slices.Equal(p.links, want) {
		t.Errorf("links %v, want %v", p.links, want)
	}
	if want := []string{"KUBE-SERVICES", "KUBE-SVC-NPX46M4PTMTKRN6Y"}; !slices.Equal(p.chains, want) || len(p.kept) > 0 {
		t.Errorf("chains %q, want %q; kept %v", p.chains, want, p.kept)
	}
}

// TestPlanOfUsed: what somebody else leads packets to stays with all behind it.
func TestPlanOfUsed(t *testing.T) {
	table := &fakeTable{table: "nat"}
	table.add("OUTPUT", rule{target: "KUBE-SERVICES", comment: "kubernetes service portals"})
	table.add("MINE", rule{target: "KUBE-SVC-NPX46M4PTMTKRN6Y"})
	table.add("KUBE-SERVICES", rule{target: "KUBE-SVC-NPX46M4PTMTKRN6Y"})
	table.add("KUBE-SVC-NPX46M4PTMTKRN6Y", rule{target: "KUBE-SEP-NPX46M4PTMTKRN6Y"})
	table.add("KUBE-SEP-NPX46M4PTMTKRN6Y", rule{target: "KUBE-SVC-NPX46M4PTMTKRN6Y"})
	p, err := makePlan(table)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"KUBE-SERVICES"}; !slices.Equal(p.chains, want) || !slices.Equal(p.links, []link{{"OUTPUT", 1}}) {
		t.Errorf("chains %q, want %q; links %v", p.chains, want, p.links)
	}
	if got, want := fmt.Sprint(p.kept), "[{KUBE-SVC-NPX46M4PTMTKRN6Y MINE} {KUBE-SEP-NPX46M4PTMTKRN6Y KUBE-SVC-NPX46M4PTMTKRN6Y}]"; got != want {
		t.Errorf("kept %s, want %s", got, want)
	}
}
