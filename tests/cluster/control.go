package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/beeline-lb/beeline/tests/credentials"
)

// apiURL is where nodes and this process reach the API server.
const apiURL = "https://" + routerAddr4 + ":6443"

// bootTimeout is how long a part of the cluster may take to be ready.
const bootTimeout = 3 * time.Minute

// issueCredentials writes the certificates and kubeconfigs of all parts to dir.
func issueCredentials(dir string, nodes int, local string) error {
	ca, err := credentials.NewAuthority(dir)
	if err != nil {
		return err
	}
	err = ca.Issue("apiserver", credentials.Subject{
		Name:  "kube-apiserver",
		IPs:   []net.IP{net.ParseIP(routerAddr4), net.ParseIP(routerAddr6), net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)},
		Names: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
	})
	users := map[string]credentials.Subject{
		"admin":              {Name: "admin", Groups: []string{"system:masters"}},
		"controller-manager": {Name: "system:kube-controller-manager"},
		"scheduler":          {Name: "system:kube-scheduler"},
		"front-proxy":        {Name: "front-proxy"},
		operator:             {Name: operator},
	}
	for i := 1; i <= nodes; i++ {
		users[nodeName(i)] = credentials.Subject{Name: "system:node:" + nodeName(i), Groups: []string{"system:nodes"}}
	}
	for file, subject := range users {
		err = errors.Join(err, ca.Issue(file, subject), writeKubeconfig(dir, file, file, apiURL))
	}
	// For people on this machine, who are outside of the cluster's namespaces.
	return errors.Join(err, writeKubeconfig(dir, "kubeconfig", "admin", local))
}

// writeKubeconfig writes <dir>/<name>.conf for a user, with the certificates in it.
func writeKubeconfig(dir, name, user, url string) error {
	var content [3][]byte
	for i, file := range []string{"ca.crt", user + ".crt", user + ".key"} {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		content[i] = b
	}
	const cluster = "beeline"
	return clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: cluster,
		Contexts:       map[string]*clientcmdapi.Context{cluster: {Cluster: cluster, AuthInfo: user}},
		Clusters:       map[string]*clientcmdapi.Cluster{cluster: {Server: url, CertificateAuthorityData: content[0]}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {ClientCertificateData: content[1], ClientKeyData: content[2]}},
	}, filepath.Join(dir, name+".conf"))
}

// startControlPlane starts etcd, the API server, the controller manager and the
// scheduler, and returns once the API server is ready.
func (c *cluster) startControlPlane(ctx context.Context) error {
	if err := c.start("etcd", filepath.Join(c.Programs.Kubernetes, "etcd"),
		"--data-dir="+filepath.Join(c.Dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--quota-backend-bytes=4294967296"); err != nil {
		return err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	return errors.Join(
		c.start("kube-controller-manager", filepath.Join(c.Programs.Node, "kube-controller-manager"),
			"--kubeconfig="+c.credential("controller-manager.conf"),
			"--authentication-kubeconfig="+c.credential("controller-manager.conf"),
			"--authorization-kubeconfig="+c.credential("controller-manager.conf"),
			"--leader-elect=false", "--use-service-account-credentials",
			"--root-ca-file="+c.credential("ca.crt"),
			"--service-account-private-key-file="+c.credential("apiserver.key"),
			"--cluster-signing-cert-file="+c.credential("ca.crt"),
			"--cluster-signing-key-file="+c.credential("ca.key"),
			"--cluster-cidr="+clusterCIDRs, "--service-cluster-ip-range="+serviceCIDRs,
			"--allocate-node-cidrs=false", "--configure-cloud-routes=false",
			"--kube-api-qps=200", "--kube-api-burst=400"),
		c.start("kube-scheduler", filepath.Join(c.Programs.Node, "kube-scheduler"),
			"--kubeconfig="+c.credential("scheduler.conf"), "--leader-elect=false",
			"--authentication-kubeconfig="+c.credential("scheduler.conf"),
			"--authorization-kubeconfig="+c.credential("scheduler.conf"),
			"--kube-api-qps=200", "--kube-api-burst=400"))
}

// apiServer is the name of the daemon.
const apiServer = "kube-apiserver"

// startAPIServer starts the API server and returns once it is ready.
func (c *cluster) startAPIServer(ctx context.Context) error {
	if err := c.start(apiServer, filepath.Join(c.Programs.Kubernetes, apiServer), c.apiServerFlags()...); err != nil {
		return err
	}
	return c.awaitAPIServer(ctx)
}

func (c *cluster) apiServerFlags() []string {
	return []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=::", "--secure-port=6443", "--advertise-address=" + routerAddr4,
		"--tls-cert-file=" + c.credential("apiserver.crt"),
		"--tls-private-key-file=" + c.credential("apiserver.key"),
		"--client-ca-file=" + c.credential("ca.crt"),
		"--kubelet-client-certificate=" + c.credential("admin.crt"),
		"--kubelet-client-key=" + c.credential("admin.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + c.credential("ca.crt"),
		"--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.credential("front-proxy.crt"),
		"--proxy-client-key-file=" + c.credential("front-proxy.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.credential("apiserver.key"),
		"--service-account-signing-key-file=" + c.credential("apiserver.key"),
		"--service-cluster-ip-range=" + serviceCIDRs,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged",
		// Webhooks by the endpoints of their Services: no proxy serves the control plane.
		"--enable-aggregator-routing",
		"--cert-dir=" + c.Dir,
	}
}

// awaitAPIServer waits until the API server says that it is ready.
func (c *cluster) awaitAPIServer(ctx context.Context) error {
	return c.await(ctx, "the API server is ready", func() error {
		client := http.Client{
			Timeout:   2 * time.Second,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
		}
		resp, err := client.Get(apiURL + "/readyz")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
}

// restConfig returns the administrator's client configuration, without a rate limit.
func (c *cluster) restConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.credential("admin.conf"))
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

// kubectl runs kubectl as an administrator and returns what it wrote.
func (c *cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Programs.Node, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.credential("admin.conf"), "HOME="+c.Dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %v: %w\n%s", args, err, out)
	}
	return string(out), nil
}
