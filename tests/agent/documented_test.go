package agent_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/pages"
)

// TestDocumentedHost: docs/standalone.md, followed to the letter: its manifests in the folder, its
// flags, its command; the endpoints that it names answer.
func TestDocumentedHost(t *testing.T) {
	t.Parallel()
	lab.Need(t, "curl")
	page, err := os.ReadFile("../../docs/standalone.md")
	if err != nil {
		t.Fatal(err)
	}
	manifests := regexp.MustCompile(`(?m)(?:^    apiVersion: .*\n)(?:^    .*\n)+`).FindString(string(page))
	if !strings.Contains(manifests, "kind: EndpointSlice") {
		t.Fatalf("the page has no manifests, but: %q", manifests)
	}
	var flags, curl []string
	for _, command := range pages.Commands(string(page)) {
		switch words := pages.Words(command); {
		case strings.HasPrefix(command, "sudo bin/beeline-agent --manifests DIR"):
			flags = words[4:]
		case strings.HasPrefix(command, "curl "):
			curl = words
		}
	}
	if len(flags) == 0 || len(curl) == 0 {
		t.Fatalf("the page starts the agent with %q and asks with %q", flags, curl)
	}

	h := lab.NewHost(t)
	endpoints := []string{"192.0.2.11", "192.0.2.12"}
	for _, addr := range endpoints {
		h.AddAddr("lo", addr+"/32")
		serveHTTP(t, h.Namespace, addr+":8080")
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "web.yaml"), []byte(strings.ReplaceAll("\n"+manifests, "\n    ", "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	// The rest is what a test may not share with the machine.
	h.Start(lab.AgentBinary(t), append([]string{
		"--manifests", folder, "--state-dir", t.TempDir(), "--cgroup-root", h.Cgroup, "--bpffs", h.BPFFS,
	}, flags...)...)
	seen := make(map[string]bool)
	lab.Eventually(t, "both endpoints have answered", func() bool {
		answer, err := h.Output(curl[0], append([]string{"--silent", "--show-error"}, curl[1:]...)...)
		if err != nil {
			return false // not served yet
		}
		addr := strings.TrimSuffix(answer, ":8080")
		if !slices.Contains(endpoints, addr) {
			t.Fatalf("%s: %q", strings.Join(curl, " "), answer)
		}
		seen[addr] = true
		return len(seen) == len(endpoints)
	})
}

// serveHTTP answers each request with the address that it came to, until the test ends.
func serveHTTP(t *testing.T, n *lab.Namespace, addr string) {
	t.Helper()
	var listener net.Listener
	err := n.Run(func() (err error) {
		listener, err = net.Listen("tcp", addr)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(addr)) }))
	server.Listener.Close() // of the machine's loopback device
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
}
