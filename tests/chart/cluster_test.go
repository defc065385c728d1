package chart_test

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/kubeclient"
)

// cluster is a real API server, without controllers and nodes: what helm installs stays
// as it is.
type cluster struct {
	t      *testing.T
	server *apiserver.Server
	client *kubeclient.Client
	helm   *helm
	audit  string
}

// auditPolicy has each request written down once, without its content.
const auditPolicy = `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}`

// newCluster starts one that does not stream lists, as API servers before 1.34, so that
// the agent asks for lists too.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, audit: filepath.Join(dir, "audit.log")}
	c.server = apiserver.Start(t, "--audit-policy-file="+policy, "--audit-log-path="+c.audit, "--allow-privileged",
		"--feature-gates=WatchList=false")
	c.client = c.server.Client(t)
	c.helm = newHelm(t, c.server.Kubeconfig)
	return c
}

// auditEvent is what of an event of the audit log is of use.
type auditEvent struct {
	Verb      string
	User      struct{ Username string }
	ObjectRef *struct{ APIGroup, Resource string }
}

// requests returns what a user asked the API server for: "verb group/resource".
func (c *cluster) requests(user string) map[string]bool {
	c.t.Helper()
	f, err := os.Open(c.audit)
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	asked := make(map[string]bool)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			c.t.Fatalf("%v: %s", err, lines.Bytes())
		}
		if event.User.Username == user && event.ObjectRef != nil {
			asked[event.Verb+" "+event.ObjectRef.APIGroup+"/"+event.ObjectRef.Resource] = true
		}
	}
	if err := lines.Err(); err != nil {
		c.t.Fatal(err)
	}
	return asked
}

// putConfigMap creates or replaces a ConfigMap.
func (c *cluster) putConfigMap(namespace, name string, data map[string]string) {
	c.t.Helper()
	maps := c.client.CoreV1().ConfigMaps(namespace)
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	_, err := maps.Update(c.t.Context(), m, metav1.UpdateOptions{})
	if err != nil {
		_, err = maps.Create(c.t.Context(), m, metav1.CreateOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// deleteConfigMap deletes one that is there.
func (c *cluster) deleteConfigMap(namespace, name string) {
	c.t.Helper()
	if err := c.client.CoreV1().ConfigMaps(namespace).Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// daemonSet returns the DaemonSet as the API server has it.
func (c *cluster) daemonSet() *appsv1.DaemonSet {
	c.t.Helper()
	set, err := c.client.AppsV1().DaemonSets(namespace).Get(c.t.Context(), release, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return set
}

// planned is what helm would install or make of what is installed.
type planned struct {
	Manifest string
	Info     struct{ Notes string }
}

// plan asks helm, and through it the API server, what it would do.
func (c *cluster) plan(verb, yaml string) (*planned, error) {
	c.t.Helper()
	out, err := c.helm.run(verb, release, chartDir(c.t), values(c.t, yaml), "--dry-run=server", "--output=json")
	if err != nil {
		return nil, err
	}
	var p planned
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	return &p, nil
}
