package kubeproxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// nativeTable is the table of kube-proxy's nftables mode, one for each family.
const nativeTable = "kube-proxy"

// nftBatch is how many chains one transaction changes: the kernel's answers have to
// fit into the socket's buffer.
const nftBatch = 100

// family is a family of nftables by the name that nft shows.
type family struct {
	id   nftables.TableFamily
	name string
}

var families = []family{
	{nftables.TableFamilyIPv4, "ip"},
	{nftables.TableFamilyIPv6, "ip6"},
}

// errNoNFTables says that the kernel has no nf_tables.
var errNoNFTables = errors.New("the kernel has no nf_tables")

// nftSession is a connection to nf_tables.
type nftSession struct {
	*nftables.Conn
	// generation returns the number of the ruleset's generation, which each change of it
	// raises.
	generation func() (uint32, error)
	close      func()
}

// openNFT connects to nf_tables of this network namespace.
func openNFT() (*nftSession, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("nftables: open a netlink socket: %w", err)
	}
	asked, err := dialGeneration()
	if err != nil {
		_ = conn.CloseLasting()
		return nil, err
	}
	return &nftSession{conn, asked.read, func() { _ = conn.CloseLasting(); _ = asked.Close() }}, nil
}

// whole calls list until the ruleset has not changed meanwhile. The kernel marks answers
// that lack something for that (NLM_F_DUMP_INTR), which package nftables passes over.
func whole[T any](s *nftSession, list func() (T, error)) (T, error) {
	return rtnl.Complete(func() (all T, err error) {
		before, err := s.generation()
		if err != nil {
			return all, err
		}
		if all, err = list(); err != nil {
			return all, err
		}
		after, err := s.generation()
		if err == nil && after != before {
			err = netlink.ErrDumpInterrupted
		}
		return all, err
	})
}

// tables lists the tables of a family. The error wraps errNoNFTables where the
// kernel has none at all.
func (s *nftSession) tables(f family) ([]*nftables.Table, error) {
	tables, err := whole(s, func() ([]*nftables.Table, error) { return s.ListTablesOfFamily(f.id) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w (%w)", errNoNFTables, err)
	}
	if err != nil {
		return nil, fmt.Errorf("nftables: list the tables of family %s: %w", f.name, err)
	}
	return tables, nil
}

// findTable returns the table of this name, nil when there is none.
func (s *nftSession) findTable(f family, name string) (*nftables.Table, error) {
	tables, err := s.tables(f)
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == name })
	if i < 0 {
		return nil, err
	}
	return tables[i], err
}

// deleteTable deletes a table with all that is in it; false says that there was
// none.
func (s *nftSession) deleteTable(f family, name string) (bool, error) {
	table, err := s.findTable(f, name)
	if table == nil || err != nil {
		return false, err
	}
	s.DelTable(table)
	if err := s.Flush(); err != nil {
		return false, fmt.Errorf("nftables: delete table %s %s: %w", f.name, name, err)
	}
	return true, nil
}

// nftTable is a table of iptables-nft.
type nftTable struct {
	session *nftSession
	family  family
	table   *nftables.Table
	names   []string
}

// iptables returns the tables of iptables-nft in which kube-proxy makes chains.
func (s *nftSession) iptables(f family) ([]*nftTable, error) {
	tables, err := s.tables(f)
	if err != nil {
		return nil, err
	}
	all, err := whole(s, func() ([]*nftables.Chain, error) { return s.ListChainsOfTableFamily(f.id) })
	if err != nil {
		return nil, fmt.Errorf("nftables: list the chains of family %s: %w", f.name, err)
	}
	var found []*nftTable
	for _, table := range tables {
		if _, ours := chains[table.Name]; !ours {
			continue
		}
		t := &nftTable{session: s, family: f, table: table}
		for _, chain := range all {
			if chain.Table.Name == table.Name {
				t.names = append(t.names, chain.Name)
			}
		}
		found = append(found, t)
	}
	return found, nil
}

func (t *nftTable) name() string     { return t.table.Name }
func (t *nftTable) chains() []string { return t.names }

// String returns the table as nft names it.
func (t *nftTable) String() string { return "table " + t.family.name + " " + t.table.Name }

func (t *nftTable) chain(name string) *nftables.Chain {
	return &nftables.Chain{Table: t.table, Name: name}
}

// list returns the rules of a chain.
func (t *nftTable) list(chain string) ([]*nftables.Rule, error) {
	list, err := whole(t.session, func() ([]*nftables.Rule, error) { return t.session.GetRules(t.table, t.chain(chain)) })
	if err != nil {
		return nil, fmt.Errorf("nftables: list the rules of %s chain %s: %w", t, chain, err)
	}
	return list, nil
}

func (t *nftTable) rules(chain string) ([]rule, error) {
	list, err := t.list(chain)
	if err != nil {
		return nil, err
	}
	rules := make([]rule, len(list))
	for i, r := range list {
		rules[i] = rule{id: r.Handle, target: nftTarget(r), comment: nftComment(r)}
	}
	return rules, nil
}

func nftTarget(r *nftables.Rule) string {
	for _, e := range r.Exprs {
		if v, ok := e.(*expr.Verdict); ok && (v.Kind == expr.VerdictJump || v.Kind == expr.VerdictGoto) {
			return v.Chain
		}
	}
	return ""
}

// nftComment returns the comment, which iptables-nft keeps as a match or beside the
// rule.
func nftComment(r *nftables.Rule) string {
	for _, e := range r.Exprs {
		if m, ok := e.(*expr.Match); ok && m.Name == "comment" {
			return matchComment(m.Info)
		}
	}
	return dataComment(r.UserData)
}

// dataComment returns the comment in the data that is kept beside a rule: a type, a length
// and the value, again and again. The kernel keeps whatever bytes a program gives it, so
// they may be anything, at which [userdata.GetString] would panic.
func dataComment(data []byte) string {
	for len(data) >= 2 && len(data)-2 >= int(data[1]) {
		kind, value := userdata.Type(data[0]), data[2:2+int(data[1])]
		if kind == userdata.TypeComment {
			return cString(value)
		}
		data = data[2+len(value):]
	}
	return ""
}

func matchComment(info xt.InfoAny) string {
	var text string
	switch i := info.(type) {
	case *xt.Comment:
		text = string(*i)
	case *xt.Unknown:
		text = string(*i)
	}
	text, _, _ = strings.Cut(text, "\x00")
	return text
}

// apply removes what the plan says. First the links go, at once, so that no packet
// ever sees a part of the rest. What fails can be tried again.
func (t *nftTable) apply(p plan) error {
	for _, l := range p.links {
		if err := t.session.DelRule(&nftables.Rule{Table: t.table, Chain: t.chain(l.chain), Handle: l.rule}); err != nil {
			return fmt.Errorf("nftables: %s chain %s: %w", t, l.chain, err)
		}
	}
	if err := t.session.Flush(); err != nil {
		return fmt.Errorf("nftables: delete rules of %s: %w", t, err)
	}
	for _, step := range []func(*nftables.Chain){t.session.FlushChain, t.session.DelChain} {
		for part := range slices.Chunk(p.chains, nftBatch) {
			for _, name := range part {
				step(t.chain(name))
			}
			if err := t.session.Flush(); err != nil {
				return fmt.Errorf("nftables: delete chains of %s: %w", t, err)
			}
		}
	}
	return nil
}
