package kubeproxy

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// TestChangedRulesetIsListedAgain: a list during which another program has changed the
// ruleset counts for nothing; when there is always a change, that is the error.
func TestChangedRulesetIsListedAgain(t *testing.T) {
	inNamespace(t)
	s, err := openNFT()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	other, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	f := families[0]
	lists, made := 0, 0
	listDuring := func(changes int) ([]*nftables.Table, error) {
		lists = 0
		return whole(s, func() ([]*nftables.Table, error) {
			tables, err := s.ListTablesOfFamily(f.id)
			if lists++; err == nil && lists <= changes {
				made++
				other.AddTable(&nftables.Table{Name: fmt.Sprint("made-", made), Family: f.id})
				err = other.Flush()
			}
			return tables, err
		})
	}
	if tables, err := listDuring(2); lists != 3 || len(tables) != 2 || err != nil {
		t.Errorf("%d lists, the last of %d tables, want 3 lists and both tables: %v", lists, len(tables), err)
	}
	if tables, err := listDuring(0); lists != 1 || len(tables) != 2 || err != nil {
		t.Errorf("%d lists without a change, the last of %d tables: %v", lists, len(tables), err)
	}
	if tables, err := listDuring(100); tables != nil || !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Errorf("%d tables of a ruleset that changes always: %v", len(tables), err)
	}
}
