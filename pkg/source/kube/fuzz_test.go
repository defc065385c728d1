package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/bounds"
)

// FuzzKubeconfig: whatever a kubeconfig holds, it is refused with an error that names a file or what is
// wrong, or leads to an API server. Nothing in it is run or asked.
func FuzzKubeconfig(f *testing.F) {
	f.Setenv("KUBERNETES_SERVICE_HOST", "")
	marker := filepath.Join(f.TempDir(), "ran")
	for _, text := range []string{
		"", kubeconfig, "{}", "apiVersion: v2\nkind: Config\n", "[", strings.ReplaceAll(kubeconfig, "https://192.0.2.1:6443", "::"),
		strings.ReplaceAll(kubeconfig, "current-context: c", "current-context: d"),
		strings.ReplaceAll(kubeconfig, "token: secret", "tokenFile: token, client-certificate: cert, client-key: key"),
		strings.ReplaceAll(kubeconfig, "token: secret", `exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: ["`+marker+`"], interactiveMode: Never}`),
		strings.ReplaceAll(kubeconfig, `server: "`, `proxy-url: "socks5://127.0.0.1:1", tls-server-name: x, insecure-skip-tls-verify: true, server: "`),
		strings.ReplaceAll(kubeconfig, `server: "`, `certificate-authority-data: "LS0tLS0=", server: "`),
		"a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
	} {
		f.Add([]byte(text))
	}
	file := filepath.Join(f.TempDir(), "kubeconfig")
	f.Fuzz(func(t *testing.T, text []byte) {
		must(t, os.WriteFile(file, text, 0o600))
		var c *clients
		var err error
		bounds.Check(t, len(text), func() { c, err = newClients(Options{Kubeconfig: file}) })
		if err != nil && err.Error() == "" || err == nil && c.core == nil {
			t.Fatalf("%v, %+v", err, c)
		}
		if _, err := os.Stat(marker); err == nil {
			t.Fatal("a program was run")
		}
	})
}
