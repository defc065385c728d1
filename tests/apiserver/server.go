// Package apiserver runs a real kube-apiserver and etcd for tests, on
// addresses of the loopback network of its own, with certificates of their own.
//
// The binaries are built from the nested module kubernetes on first use and kept
// in the repository's .cache/bin. There is no controller manager: tests make the
// EndpointSlices themselves.
package apiserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/beeline-lb/beeline/tests/kubeclient"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// readyTimeout is how long the API server may take to start.
var readyTimeout = wait.Limit

// Server is a running API server with its etcd. Make one with [Start].
type Server struct {
	// Kubeconfig is the path of a kubeconfig of a cluster administrator.
	Kubeconfig string
	// Config is the same for client-go. It has no rate limit.
	Config *rest.Config
	// EtcdURL is where etcd serves without credentials.
	EtcdURL string

	binary string
	args   []string
	log    string
	api    *process
	etcd   *process
}

// Start runs an API server until t ends. The flags are added to those of
// kube-apiserver and may override them. Tests that call it are left to make test-all, see
// [tier.Slow].
func Start(t testing.TB, flags ...string) *Server {
	t.Helper()
	if testing.Testing() {
		tier.Slow(t, "needs a kube-apiserver, which takes minutes to build")
	}
	bin, err := Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	apiAddr := freeAddr(t)
	if err := writeCredentials(dir, apiAddr.Addr()); err != nil {
		t.Fatal(err)
	}
	s := &Server{
		Kubeconfig: filepath.Join(dir, "kubeconfig"),
		EtcdURL:    "http://" + freeAddr(t).String(),
		binary:     filepath.Join(bin, "kube-apiserver"),
		log:        filepath.Join(dir, "kube-apiserver.log"),
	}
	s.Config = adminConfig(dir, "https://"+apiAddr.String())
	if err := writeKubeconfig(s.Kubeconfig, s.Config); err != nil {
		t.Fatal(err)
	}
	s.args = append(apiFlags(dir, apiAddr, s.EtcdURL), flags...)

	s.etcd = startEtcd(t, filepath.Join(bin, "etcd"), dir, s.EtcdURL)
	t.Cleanup(func() { s.stop(t) })
	s.Restart(t)
	return s
}

// Client returns a client of an administrator.
func (s *Server) Client(t testing.TB) *kubeclient.Client {
	t.Helper()
	c, err := kubeclient.New(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Kill ends the API server at once, with SIGKILL. Its etcd runs on.
func (s *Server) Kill() {
	if s.api != nil {
		s.api.kill()
	}
}

// Restart kills the API server if it runs, starts it on the same port and waits
// until it is ready.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Kill()
	api, err := start(s.log, s.binary, s.args...)
	if err != nil {
		t.Fatal(err)
	}
	s.api = api
	if err := s.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) stop(t testing.TB) {
	s.Kill()
	if t.Failed() {
		t.Logf("end of the kube-apiserver's log:\n%s", tail(s.log))
	}
}

func (s *Server) waitReady(ctx context.Context) error {
	client, err := rest.HTTPClientFor(s.Config)
	if err != nil {
		return err
	}
	deadline := time.After(readyTimeout)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if isReady(ctx, client, s.Config.Host) {
			return nil
		}
		select {
		case <-s.api.exited:
			return fmt.Errorf("kube-apiserver ended before it was ready: %w", s.api.err)
		case <-s.etcd.exited:
			return fmt.Errorf("etcd ended: %w", s.etcd.err)
		case <-deadline:
			return fmt.Errorf("kube-apiserver is not ready after %s", readyTimeout)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func isReady(ctx context.Context, client *http.Client, host string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// apiFlags disable what takes long to start or needs a node.
func apiFlags(dir string, addr netip.AddrPort, etcd string) []string {
	return []string{
		"--etcd-servers=" + etcd,
		"--bind-address=" + addr.Addr().String(),
		"--secure-port=" + strconv.Itoa(int(addr.Port())),
		"--endpoint-reconciler-type=none",
		"--tls-cert-file=" + filepath.Join(dir, "server.crt"),
		"--tls-private-key-file=" + filepath.Join(dir, "server.key"),
		"--client-ca-file=" + filepath.Join(dir, "ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + filepath.Join(dir, "server.key"),
		"--service-account-signing-key-file=" + filepath.Join(dir, "server.key"),
		"--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112",
		"--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount",
		"--cert-dir=" + dir,
	}
}

func startEtcd(t testing.TB, binary, dir, url string) *process {
	t.Helper()
	peer := "http://" + freeAddr(t).String()
	log := filepath.Join(dir, "etcd.log")
	etcd, err := start(log, binary,
		"--data-dir="+filepath.Join(dir, "etcd"),
		"--unsafe-no-fsync",
		"--log-level=warn",
		"--listen-client-urls="+url, "--advertise-client-urls="+url,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer,
		"--initial-cluster=default="+peer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		etcd.kill()
		if t.Failed() {
			t.Logf("end of etcd's log:\n%s", tail(log))
		}
	})
	return etcd
}

// freeAddr returns a loopback address and a port of it that nothing listens on. The
// address is drawn from millions: between this and the server's own listen(), and
// while the server restarts, no other test draws it. The port is below those that
// Linux gives to clients and to NodePorts.
func freeAddr(t testing.TB) netip.AddrPort {
	t.Helper()
	const first, count, attempts = 20000, 10000, 100
	for range attempts {
		ip := netip.AddrFrom4([4]byte{127, byte(64 + rand.IntN(128)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
		addr := netip.AddrPortFrom(ip, uint16(first+rand.IntN(count)))
		if l, err := net.Listen("tcp4", addr.String()); err == nil {
			l.Close()
			return addr
		}
	}
	t.Fatalf("no free port found in %d-%d", first, first+count-1)
	return netip.AddrPort{}
}

func adminConfig(dir, host string) *rest.Config {
	return &rest.Config{
		Host: host,
		QPS:  -1,
		TLSClientConfig: rest.TLSClientConfig{
			CAFile:   filepath.Join(dir, "ca.crt"),
			CertFile: filepath.Join(dir, "admin.crt"),
			KeyFile:  filepath.Join(dir, "admin.key"),
		},
	}
}

func writeKubeconfig(path string, c *rest.Config) error {
	const name = "test"
	return clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: name,
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: c.Host, CertificateAuthority: c.CAFile}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {ClientCertificate: c.CertFile, ClientKey: c.KeyFile}},
	}, path)
}
