package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"golang.org/x/tools/txtar"

	"github.com/beeline-lb/beeline/tests/bounds"
)

// FuzzConfig: whatever a file holds, each line of the error names the file, or a flag or
// field; what is taken has settings within bounds and, written and read again, is the same.
func FuzzConfig(f *testing.F) {
	archive, err := txtar.ParseFile("testdata/faults.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range archive.Files {
		if strings.HasSuffix(file.Name, ".yaml") {
			f.Add(file.Data)
		}
	}
	for _, name := range []string{"kubeadm", "partial", "old"} {
		raw, err := os.ReadFile("testdata/" + name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, raw []byte) {
		name := filepath.Join(dir, "tried.yaml")
		if err := os.WriteFile(name, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		bounds.Check(t, len(raw), func() {
			c, err := loadFile(name)
			if err != nil {
				wantPlaced(t, name, err)
				return
			}
			s, err := c.Settings()
			if err != nil {
				wantPlaced(t, name, err)
				return
			}
			wantSane(t, s)
			again := filepath.Join(dir, "written.yaml")
			if err := c.Write(again); err != nil {
				t.Fatal(err)
			}
			back, err := loadFile(again)
			if err != nil {
				t.Fatalf("what is written cannot be read: %v", err)
			}
			equal(t, "KubeProxyConfiguration", tree(back.KubeProxy), tree(c.KubeProxy))
			equal(t, "BeelineConfiguration", back.Beeline, c.Beeline)
			if _, err := back.Settings(); err != nil {
				t.Fatalf("what is written is rejected: %v", err)
			}
		})
	})
}

// loadFile reads one file, without flags. The node's name is given: the host's may be any.
func loadFile(name string) (*Config, error) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags := AddFlags(set)
	if err := set.Parse([]string{"--config", name}); err != nil {
		return nil, err
	}
	return flags.Load()
}

// wantPlaced fails the test unless each fault has its place and a reason.
func wantPlaced(t *testing.T, name string, err error) {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("a lone error: %v", err)
	}
	for _, e := range joined.Unwrap() {
		place, reason, ok := strings.Cut(e.Error(), ": ")
		known := strings.HasPrefix(place, name) || strings.HasPrefix(place, "--") ||
			strings.HasPrefix(place, KubeProxyKind) || strings.HasPrefix(place, BeelineKind)
		if !ok || !known || reason == "" {
			t.Fatalf("an error without a place: %v", e)
		}
	}
}

// wantSane fails the test when a part would be started with what it cannot take.
func wantSane(t *testing.T, s *Settings) {
	t.Helper()
	if s.NodeName == "" || s.SyncPeriod <= 0 || s.MinSyncPeriod < 0 {
		t.Fatalf("node %q, periods %v and %v", s.NodeName, s.SyncPeriod, s.MinSyncPeriod)
	}
	if s.SNATPortMin == 0 || s.SNATPortMax < s.SNATPortMin {
		t.Fatalf("source ports %d-%d", s.SNATPortMin, s.SNATPortMax)
	}
	if s.Sizes.Flows <= 0 {
		t.Fatalf("sizes %+v", s.Sizes)
	}
	wantPrefixes(t, s)
}

func wantPrefixes(t *testing.T, s *Settings) {
	t.Helper()
	for _, p := range append(append(s.ServiceRanges[:len(s.ServiceRanges):len(s.ServiceRanges)], s.PodRanges...), s.NodePorts.CIDRs...) {
		if !p.IsValid() || p.Addr().Is4In6() {
			t.Fatalf("prefix %v", p)
		}
	}
	for i, a := range s.NodeAddrs {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" || i > 0 && a.Is4() == s.NodeAddrs[0].Is4() {
			t.Fatalf("node addresses %v", s.NodeAddrs)
		}
	}
}
