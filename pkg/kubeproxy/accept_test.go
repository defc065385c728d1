package kubeproxy

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// iptables runs a program of iptables and returns what it writes.
func iptables(t *testing.T, program string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skip(err)
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

var programs = []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"}

// TestAccept: the chain is made where FORWARD drops, as iptables itself would make it,
// once; and goes again without a trace.
func TestAccept(t *testing.T) {
	for _, drops := range []string{
		"-P FORWARD DROP",
		"-A FORWARD -p tcp -j DROP",
		"-A FORWARD -j REJECT",
	} {
		for _, program := range programs {
			t.Run(program+" "+drops, func(t *testing.T) {
				inNamespace(t)
				iptables(t, program, "-N", "mine")
				iptables(t, program, "-A", "FORWARD", "-j", "mine")
				iptables(t, program, strings.Fields(drops)...)
				iptables(t, program, "-A", "INPUT", "-g", "mine")
				iptables(t, program, "-A", "mine", "-p", "udp")
				before := strings.Split(iptables(t, program, "-S"), "\n")

				for _, want := range []int{1, 0} {
					if made, err := Accept(t.Context()); made != want || err != nil {
						t.Fatalf("made %d, want %d: %v", made, want, err)
					}
				}
				want := slices.Clone(before)
				want = slices.Insert(want, slices.Index(want, "-A FORWARD -j mine"), "-A FORWARD -j BEELINE-FORWARD")
				want = append(want, "-N BEELINE-FORWARD",
					"-A BEELINE-FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT",
					"-A BEELINE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
				got := strings.Split(iptables(t, program, "-S"), "\n")
				if !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
					t.Errorf("got:\n%s\nwant in any order of chains:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				if i := slices.Index(got, "-A FORWARD -j BEELINE-FORWARD"); i < 0 || slices.Index(got, "-A FORWARD -j mine") < i {
					t.Errorf("the chain is not first in FORWARD:\n%s", strings.Join(got, "\n"))
				}

				if r, err := Leave(t.Context()); err != nil || len(r.Removed) != 1 {
					t.Fatalf("removed %q: %v", r.Removed, err)
				}
				if got := strings.Split(iptables(t, program, "-S"), "\n"); !slices.Equal(got, before) {
					t.Errorf("after all:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(before, "\n"))
				}
			})
		}
	}
}

// TestAcceptNothing: where FORWARD lets all pass, and where there is no iptables,
// nothing is made.
func TestAcceptNothing(t *testing.T) {
	for _, program := range programs {
		t.Run(program, func(t *testing.T) {
			inNamespace(t)
			if made, err := Accept(t.Context()); made != 0 || err != nil {
				t.Fatalf("without a table: made %d: %v", made, err)
			}
			iptables(t, program, "-A", "INPUT", "-j", "DROP")
			before := iptables(t, program, "-S")
			if made, err := Accept(t.Context()); made != 0 || err != nil {
				t.Fatalf("made %d: %v", made, err)
			}
			if got := iptables(t, program, "-S"); got != before {
				t.Errorf("got:\n%s\nwant:\n%s", got, before)
			}
		})
	}
}
