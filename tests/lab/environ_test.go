package lab

import (
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// TestProxy: programs in a namespace connect to it, whatever proxies the machine's user has.
func TestProxy(t *testing.T) {
	Need(t, "curl")
	h := NewHost(t)
	at := netip.AddrPortFrom(Backend4(1), 8080)
	h.ServeHTTP(at, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("served")) }))
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".curlrc"), []byte("proxy = http://127.0.0.1:9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, env := range map[string]map[string]string{
		"variable": {"http_proxy": "http://127.0.0.1:9"},
		"curlrc":   {"HOME": home, "CURL_HOME": home},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range env {
				t.Setenv(key, value)
			}
			get := []string{"--silent", "--show-error", "http://" + at.String()}
			if out, err := h.Output("curl", get...); err != nil || out != "served" {
				t.Errorf("Output: %q, %v", out, err)
			}
			p := h.Start("curl", get...)
			if err := p.Wait(); err != nil || p.Output() != "served" {
				t.Errorf("Start: %q, %v", p.Output(), err)
			}
		})
	}
}
