package agent_test

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// get fetches a page from inside the host's namespace.
func get(h *lab.Host, url string) (body string, err error) {
	response, err := h.HTTPClient().Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, response.Status)
	}
	return string(text), err
}

// TestPages: health, and metrics that count what was chosen and refused.
func TestPages(t *testing.T) {
	t.Parallel()
	h, _ := start(t)
	for range 7 {
		mustReach(t, h, "tcp4", webTCP)
	}
	refused := netip.AddrPortFrom(webTCP.Addr(), 81)
	if !fails(h, refused, unix.ECONNREFUSED)() {
		t.Errorf("%s is not refused", refused)
	}
	for _, url := range []string{"http://127.0.0.1:10256/healthz", "http://127.0.0.1:10256/livez"} {
		if _, err := get(h, url); err != nil {
			t.Error(err)
		}
	}
	metrics, err := get(h, "http://127.0.0.1:10249/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`beeline_service_connections_total{ip_family="IPv4",namespace="default",port="web",protocol="TCP",service="web"} 7`,
		`beeline_datapath_events_total{effect="refused",reason="undeclared_port"} 1`,
		`beeline_nodes{answer="accepts"} 0`,
		`beeline_nodes{answer="unreachable"} 0`,
		`beeline_table_entries{map="bl_service"} 3`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("metrics lack %s:\n%s", line, metrics)
		}
	}
}
