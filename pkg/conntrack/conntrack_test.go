package conntrack_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/conntrack"
)

// newHost makes the files of a machine with the kernel's defaults.
func newHost(t *testing.T) conntrack.Host {
	t.Helper()
	dir := t.TempDir()
	for name, value := range map[string]string{
		"nf_conntrack_max":                     "65536",
		"nf_conntrack_tcp_timeout_established": "432000",
		"nf_conntrack_tcp_timeout_close_wait":  "60",
		"nf_conntrack_tcp_be_liberal":          "0",
		"nf_conntrack_udp_timeout":             "30",
		"nf_conntrack_udp_timeout_stream":      "120",
		"hashsize":                             "16384",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return conntrack.Host{Sysctls: dir, HashSize: filepath.Join(dir, "hashsize")}
}

// values returns what the files of a machine hold.
func values(t *testing.T, h conntrack.Host) string {
	t.Helper()
	var all []string
	for _, name := range []string{"nf_conntrack_max", "hashsize", "nf_conntrack_tcp_timeout_established",
		"nf_conntrack_tcp_timeout_close_wait", "nf_conntrack_tcp_be_liberal", "nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"} {
		content, err := os.ReadFile(filepath.Join(h.Sysctls, name))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.TrimSpace(string(content)))
	}
	return strings.Join(all, " ")
}

func TestApply(t *testing.T) {
	for _, tc := range []struct {
		description string
		settings    conntrack.Settings
		want        string
		changed     int
	}{
		{"nothing", conntrack.Settings{}, "65536 16384 432000 60 0 30 120", 0},
		{"kube-proxy's defaults", conntrack.Settings{Max: 131072, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour},
			"131072 32768 86400 3600 0 30 120", 4},
		{"everything", conntrack.Settings{Max: 4000, TCPEstablished: time.Minute, TCPCloseWait: 2 * time.Minute,
			UDP: time.Second, UDPStream: 1500 * time.Millisecond, TCPBeLiberal: true}, "4000 16384 60 120 1 1 1", 6},
		{"what is so already", conntrack.Settings{Max: 65536, UDP: 30 * time.Second}, "65536 16384 432000 60 0 30 120", 0},
	} {
		t.Run(tc.description, func(t *testing.T) {
			h := newHost(t)
			changed, err := h.Apply(tc.settings)
			if err != nil {
				t.Fatal(err)
			}
			if got := values(t, h); got != tc.want || len(changed) != tc.changed {
				t.Errorf("changed %v to %s, want %s", changed, got, tc.want)
			}
		})
	}
}

// TestApplyPart sets what can be set and names the rest.
func TestApplyPart(t *testing.T) {
	h := newHost(t)
	max := filepath.Join(h.Sysctls, "nf_conntrack_max")
	if err := os.Remove(filepath.Join(h.Sysctls, "nf_conntrack_udp_timeout")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(max, []byte("many"), 0o600); err != nil {
		t.Fatal(err)
	}
	changed, err := h.Apply(conntrack.Settings{Max: 100, UDP: time.Minute, UDPStream: time.Minute})
	if !slices.Equal(changed, []string{"nf_conntrack_udp_timeout_stream"}) {
		t.Errorf("changed %v", changed)
	}
	if err == nil || !strings.Contains(err.Error(), max) || !strings.Contains(err.Error(), "nf_conntrack_udp_timeout:") {
		t.Errorf("error %v", err)
	}
}

// TestNotLoaded tells that there is no connection tracking.
func TestNotLoaded(t *testing.T) {
	h := conntrack.Host{Sysctls: filepath.Join(t.TempDir(), "netfilter")}
	if _, err := h.Apply(conntrack.Settings{Max: 1}); !errors.Is(err, conntrack.ErrNotLoaded) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// TestLoadedLater: settings are made when connection tracking appears, and awaited no longer than ctx.
func TestLoadedLater(t *testing.T) {
	loaded := newHost(t)
	h := conntrack.Host{Sysctls: filepath.Join(t.TempDir(), "netfilter"), HashSize: loaded.HashSize}
	applied := make(chan []string)
	go func() {
		changed, err := h.ApplyWhenLoaded(t.Context(), conntrack.Settings{UDP: 7 * time.Second}, time.Millisecond)
		if err != nil {
			t.Error(err)
		}
		applied <- changed
	}()
	if err := os.Rename(loaded.Sysctls, h.Sysctls); err != nil {
		t.Fatal(err)
	}
	if changed := <-applied; !slices.Equal(changed, []string{"nf_conntrack_udp_timeout"}) {
		t.Errorf("changed: %q", changed)
	}
	if got, want := values(t, conntrack.Host{Sysctls: h.Sysctls}), "65536 16384 432000 60 0 7 120"; got != want {
		t.Errorf("values %s, want %s", got, want)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	never := conntrack.Host{Sysctls: filepath.Join(t.TempDir(), "netfilter")}
	if changed, err := never.ApplyWhenLoaded(ctx, conntrack.Settings{Max: 1}, time.Hour); len(changed) > 0 || err != nil {
		t.Errorf("changed: %q, error %v", changed, err)
	}
}
