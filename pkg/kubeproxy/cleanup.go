package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/conntrack"
)

// Report is the result of a cleanup, one line for each object.
type Report struct {
	// Removed names the objects that are gone.
	Removed []string
	// Kept names the objects that are still there, and why.
	Kept []string
}

func (r *Report) removed(format string, args ...any) {
	r.Removed = append(r.Removed, fmt.Sprintf(format, args...))
}

// took notes what became of one table.
func (r *Report) took(table string, p plan) {
	if !p.empty() {
		r.removed("%d chains of %s and %d rules that led to them", len(p.chains), table, len(p.links))
	}
	for _, k := range p.kept {
		r.Kept = append(r.Kept, fmt.Sprintf("chain %s of %s: chain %s leads to it", k.chain, table, k.by))
	}
}

// attempts is how often a table is read and written anew when another program has
// changed it meanwhile, and how often a set that is in use is tried.
const attempts = 5

// Cleanup removes what kube-proxy made in the network namespace of the calling
// thread. kube-proxy must not run any more, for it would make all of it again.
// What could not be removed is in the error, all else is removed nevertheless;
// Cleanup can be called again.
func Cleanup(ctx context.Context) (*Report, error) {
	r := &Report{}
	session, err := openNFT()
	if err != nil {
		return r, err
	}
	defer session.close()
	var errs []error
	for i, f := range families {
		errs = append(errs, session.cleanFamily(ctx, f, legacyFamilies[i], r))
	}
	errs = append(errs, cleanIPVS(r), cleanSets(r), release(r))
	return r, errors.Join(errs...)
}

// Leave removes what Beeline itself made: what [Accept] made, and the tables
// "beeline-handover" unless connections need them.
func Leave(ctx context.Context) (*Report, error) {
	r := &Report{}
	err := errors.Join(removeAccept(ctx, r), release(r))
	return r, err
}

// release is [Release] with a report.
func release(r *Report) error {
	connections, err := Release()
	if errors.Is(err, conntrack.ErrNoList) {
		r.Kept = append(r.Kept, fmt.Sprintf("table %s: %v; remove it with nft when those that kube-proxy set up have ended", handoverTable, conntrack.ErrNoList))
		return nil
	}
	if connections > 0 {
		r.Kept = append(r.Kept, fmt.Sprintf("table %s: %d connections are translated yet; the agent, or another cleanup, removes it when they have ended",
			handoverTable, connections))
	}
	return err
}

// cleanFamily removes the rules of one IP family. When connections cannot be held,
// nothing is removed.
func (s *nftSession) cleanFamily(ctx context.Context, f family, legacy legacyFamily, r *Report) error {
	found, err := s.find(f, legacy)
	if err != nil || !found {
		return err
	}
	if err := s.holdConnections(f); err != nil {
		return err
	}
	if err := s.replaceForward(ctx, f, legacy); err != nil {
		return err
	}
	removed, err := s.deleteTable(f, nativeTable)
	if removed {
		r.removed("table %s %s", f.name, nativeTable)
	}
	return errors.Join(err, s.cleanIPTables(f, r), cleanLegacy(ctx, legacy, r))
}

// find reports whether there is anything to remove.
func (s *nftSession) find(f family, legacy legacyFamily) (bool, error) {
	native, err := s.findTable(f, nativeTable)
	if native != nil || err != nil && !errors.Is(err, errNoNFTables) {
		return native != nil, err
	}
	tables, err := s.rulesets(f, legacy)
	if err != nil {
		return false, err
	}
	for _, t := range tables {
		if p, err := makePlan(t); err != nil || !p.empty() {
			return true, err
		}
	}
	return false, nil
}

// rulesets returns the tables of iptables of both kinds.
func (s *nftSession) rulesets(f family, legacy legacyFamily) ([]ruleset, error) {
	var all []ruleset
	tables, err := s.iptables(f)
	if err != nil && !errors.Is(err, errNoNFTables) {
		return nil, err
	}
	for _, t := range tables {
		all = append(all, t)
	}
	old, err := readLegacy(legacy)
	for _, t := range old {
		all = append(all, t)
	}
	return all, err
}

// replaceForward accepts what KUBE-FORWARD accepts, if there is one and it matters.
func (s *nftSession) replaceForward(ctx context.Context, f family, legacy legacyFamily) error {
	tables, err := s.rulesets(f, legacy)
	if err != nil {
		return err
	}
	needed := slices.ContainsFunc(tables, func(t ruleset) bool {
		return t.name() == "filter" && slices.Contains(t.chains(), "KUBE-FORWARD")
	})
	if !needed {
		return nil
	}
	_, err = s.accept(f)
	_, errLegacy := acceptLegacy(ctx, legacy)
	return errors.Join(err, errLegacy)
}

// cleanIPTables removes the chains of iptables-nft.
func (s *nftSession) cleanIPTables(f family, r *Report) error {
	tables, err := s.iptables(f)
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range tables {
		p, err := makePlan(t)
		if err == nil {
			err = t.apply(p)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.took(t.String(), p)
	}
	return errors.Join(errs...)
}

// readLegacy returns the tables of iptables-legacy that are in use.
func readLegacy(f legacyFamily) ([]*xtTable, error) {
	names, err := f.inUse()
	if len(names) == 0 || err != nil {
		return nil, err
	}
	s, err := openLegacy(f)
	if err != nil {
		return nil, err
	}
	defer s.close()
	var tables []*xtTable
	for _, name := range names {
		t, err := s.read(name)
		if err != nil {
			return nil, err
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// openLegacyLocked opens the tables of iptables-legacy while no program of iptables
// changes them, until unlock is called.
func openLegacyLocked(ctx context.Context, f legacyFamily) (s *legacySession, unlock func(), err error) {
	release, err := lockXtables(ctx)
	if err != nil {
		return nil, nil, err
	}
	if s, err = openLegacy(f); err != nil {
		release()
		return nil, nil, err
	}
	return s, func() { s.close(); release() }, nil
}

// cleanLegacy removes the chains of iptables-legacy.
func cleanLegacy(ctx context.Context, f legacyFamily, r *Report) error {
	names, err := f.inUse()
	if len(names) == 0 || err != nil {
		return err
	}
	s, unlock, err := openLegacyLocked(ctx, f)
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	for _, name := range names {
		errs = append(errs, s.clean(name, r))
	}
	return errors.Join(errs...)
}

// clean removes the chains of one table at once.
func (s *legacySession) clean(name string, r *Report) error {
	for attempt := 1; ; attempt++ {
		t, err := s.read(name)
		if err != nil {
			return err
		}
		p, err := makePlan(t)
		if err != nil {
			return err
		}
		if !p.empty() {
			t.drop(p)
			err = s.write(t)
		}
		if errors.Is(err, unix.EAGAIN) && attempt < attempts {
			continue
		}
		if err == nil {
			r.took(s.name+" table "+name, p)
		}
		return err
	}
}
