package chart_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// TestCluster runs what needs an API server on one of them, one after the other.
func TestCluster(t *testing.T) {
	c := newCluster(t)
	for _, test := range []struct {
		name string
		run  func(*cluster)
	}{
		{"the API server accepts the matrix", acceptsMatrix},
		{"the API server's address is looked up", findsAPIServer},
		{"which addresses are pods' is looked up", findsPods},
		{"the tunnel's port is named", namesTunnel},
		{"kube-proxy that has the ports is named", namesKubeProxy},
		{"kube-proxy's configuration is watched over", rollsForKubeProxysConfig},
		{"upgrade and rollback", upgrades},
		{"the tunnel's secret stays", keepsSecret},
		{"the agent serves with what the chart gives it", servesAsInstalled},
		{"a node is taken down", takesDown},
		{"a node is cleaned of kube-proxy", cleansUp},
		{"uninstall", uninstalls},
	} {
		if !t.Run(test.name, func(t *testing.T) {
			here := *c
			here.t, here.helm = t, newHelm(t, c.server.Kubeconfig)
			test.run(&here)
		}) {
			return
		}
	}
}

// namesTunnel looks for the port in the notes of who asks for direct server return.
func namesTunnel(c *cluster) {
	for config, want := range map[string]string{
		"{}": "", "{forwardingMode: snat}": "", "{forwardingMode: dsr}": "UDP port 6091", "{forwardingMode: hybrid, dsrPort: 7000}": "UDP port 7000",
	} {
		p, err := c.plan("install", onNode+"config: "+config)
		if err != nil {
			c.t.Fatal(err)
		}
		if notes := p.Info.Notes; !strings.Contains(notes, want) || strings.Contains(notes, "UDP") != (want != "") {
			c.t.Errorf("with %s the notes are\n%s", config, notes)
		}
	}
}

// namesKubeProxy looks for what the notes say of ports while kube-proxy has them.
func namesKubeProxy(c *cluster) {
	sets := c.client.AppsV1().DaemonSets(namespace)
	labels := map[string]string{"k8s-app": "kube-proxy"}
	proxy, err := sets.Create(c.t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "kube-proxy", Image: "kube-proxy"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := sets.Delete(context.Background(), proxy.Name, metav1.DeleteOptions{}); err != nil {
			c.t.Error(err)
		}
	})
	for _, test := range []struct {
		nodes int32
		yaml  string
		named bool
	}{{0, "", false}, {2, "", true}, {2, "healthz: {port: 19256}", false}} {
		proxy.Status.DesiredNumberScheduled = test.nodes
		if proxy, err = sets.UpdateStatus(c.t.Context(), proxy, metav1.UpdateOptions{}); err != nil {
			c.t.Fatal(err)
		}
		p, err := c.plan("install", onNode+test.yaml)
		if err != nil {
			c.t.Fatal(err)
		}
		if notes := p.Info.Notes; strings.Contains(notes, "--set healthz.port=19256") != test.named {
			c.t.Errorf("with kube-proxy on %d nodes and %q the notes are\n%s", test.nodes, test.yaml, notes)
		}
	}
}

// acceptsMatrix has the API server create what each set of values makes, without
// keeping it; unknown fields are errors.
func acceptsMatrix(c *cluster) {
	for name, yaml := range matrix {
		rendered, err := c.helm.template(onNode + yaml)
		if err != nil {
			c.t.Errorf("%s: %v", name, err)
			continue
		}
		for _, object := range decode(c.t, rendered) {
			if err := c.dryRun(object); err != nil {
				c.t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// dryRun creates an object strictly, without keeping it. Kinds that the API server does
// not have are left out.
func (c *cluster) dryRun(object runtime.Object) error {
	kinds, _, err := scheme.ObjectKinds(object)
	if err != nil {
		return err
	}
	kind := kinds[0]
	if kind.Group == "monitoring.coreos.com" {
		return nil
	}
	meta := object.(metav1.Object)
	resource := strings.ToLower(kind.Kind) + "s"
	path := []string{"/apis", kind.Group, kind.Version}
	if kind.Group == "" {
		path = []string{"/api", kind.Version}
	}
	if meta.GetNamespace() != "" {
		path = append(path, "namespaces", meta.GetNamespace())
	}
	object.GetObjectKind().SetGroupVersionKind(kind)
	client := c.client.CoreV1().RESTClient().(*rest.RESTClient)
	err = client.Post().AbsPath(append(path, resource)...).
		Param("dryRun", metav1.DryRunAll).Param("fieldValidation", metav1.FieldValidationStrict).
		Body(encode(c.t, object)).SetHeader("Content-Type", "application/json").Do(c.t.Context()).Error()
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind.Kind, meta.GetName(), err)
	}
	return nil
}

// kubeconfig returns one that leads to a server.
func kubeconfig(server string) string {
	return "apiVersion: v1\nkind: Config\nclusters: [{name: default, cluster: {server: '" + server + "'}}]\n"
}

// findsAPIServer puts the places where the address can be found into the cluster, one
// after the other. Each goes before the former.
func findsAPIServer(c *cluster) {
	wants := func(yaml, host, port, source string) {
		c.t.Helper()
		p, err := c.plan("install", yaml)
		if err != nil {
			c.t.Fatal(err)
		}
		if got := apiServer(daemonSet(c.t, decode(c.t, p.Manifest)).Spec.Template.Spec); got != host+" "+port {
			c.t.Errorf("the agents are sent to %s, want %s %s", got, host, port)
		}
		if notes := strings.Join(strings.Fields(p.Info.Notes), " "); !strings.Contains(notes, source) {
			c.t.Errorf("the notes do not say %q:\n%s", source, p.Info.Notes)
		}
	}
	if _, err := c.plan("install", "{}"); err == nil || !strings.Contains(err.Error(), "apiServer.host") {
		c.t.Errorf("without an address: %v", err)
	}
	c.putConfigMap("kube-public", "cluster-info", map[string]string{"kubeconfig": kubeconfig("https://api.example.org:7443")})
	wants("{}", "api.example.org", "7443", "api.example.org:7443, taken from the ConfigMap kube-public/cluster-info")
	c.putConfigMap(namespace, "kube-proxy", map[string]string{"config.conf": "", "kubeconfig": kubeconfig("https://eks.example.org")})
	wants("{}", "eks.example.org", "443", "the key kubeconfig of the ConfigMap kube-system/kube-proxy")
	c.putConfigMap(namespace, "kube-proxy", map[string]string{"kubeconfig.conf": kubeconfig("https://[fd00::7]:6443")})
	wants("{}", "fd00::7", "6443", "[fd00::7]:6443, taken from the key kubeconfig.conf")
	wants("apiServer: {host: 192.0.2.9}", "192.0.2.9", "6443", "the value apiServer.host")
	wants("apiServer: {host: '::1', port: 8443}", "::1", "8443", "[::1]:8443")
	for _, broken := range []string{
		"no: {kubeconfig", "clusters: here", "clusters: 3", "clusters: [here]", "clusters: [{cluster: here}]",
		"clusters: [{cluster: {server: [a]}}]", kubeconfig("://%"), kubeconfig("https://%zz"),
	} {
		c.putConfigMap(namespace, "kube-proxy", map[string]string{"kubeconfig.conf": broken})
		wants("{}", "api.example.org", "7443", "cluster-info")
	}

	// What is installed is kept when there is nothing else to be found.
	c.helm.must("install", release, chartDir(c.t))
	c.deleteConfigMap(namespace, "kube-proxy")
	c.deleteConfigMap("kube-public", "cluster-info")
	c.helm.must("upgrade", release, chartDir(c.t))
	if got := apiServer(c.daemonSet().Spec.Template.Spec); got != "api.example.org 7443" {
		c.t.Errorf("after an upgrade the agents are sent to %s", got)
	}
	c.helm.must("uninstall", release)
}

// apiServer returns host and port that the agent is told.
func apiServer(pod corev1.PodSpec) string {
	var host, port string
	for _, e := range pod.Containers[0].Env {
		switch e.Name {
		case "KUBERNETES_SERVICE_HOST":
			host = e.Value
		case "KUBERNETES_SERVICE_PORT":
			port = e.Value
		}
	}
	return host + " " + port
}

// rollsForKubeProxysConfig: an upgrade starts the agents again when the ConfigMap that
// they read has changed.
func rollsForKubeProxysConfig(c *cluster) {
	sum := func(config string) string {
		c.t.Helper()
		c.putConfigMap(namespace, "kube-proxy", map[string]string{"config.conf": config})
		p, err := c.plan("install", onNode+"existingKubeProxyConfigMap: {name: kube-proxy}")
		if err != nil {
			c.t.Fatal(err)
		}
		return daemonSet(c.t, decode(c.t, p.Manifest)).Spec.Template.Annotations["checksum/config"]
	}
	if a, b := sum("clusterCIDR: 10.0.0.0/8"), sum("clusterCIDR: 10.1.0.0/16"); a == b {
		c.t.Error("the checksum stays when kube-proxy's ConfigMap changes")
	}
	c.deleteConfigMap(namespace, "kube-proxy")
}

// upgrades installs, changes the configuration and goes back: the pods' template must
// follow, or agents would run on with the wrong configuration.
func upgrades(c *cluster) {
	c.helm.must("install", release, chartDir(c.t), values(c.t, onNode+"image: {tag: v1}"))
	first := c.daemonSet().Spec.Template
	c.helm.must("upgrade", release, chartDir(c.t), values(c.t, onNode+"image: {tag: v2}\nconfig: {devices: [eth0]}"))
	second := c.daemonSet().Spec.Template
	if second.Annotations["checksum/config"] == first.Annotations["checksum/config"] {
		c.t.Error("another configuration does not start the agents again")
	}
	if image := second.Spec.Containers[0].Image; image != "ghcr.io/beeline-lb/beeline:v2" {
		c.t.Errorf("the image is %s after the upgrade", image)
	}
	c.helm.must("rollback", release)
	if got := c.daemonSet().Spec.Template; !equality.Semantic.DeepEqual(got, first) {
		c.t.Errorf("after a rollback the pods are\n%v\nwant\n%v", got, first)
	}
	c.helm.must("upgrade", release, chartDir(c.t), values(c.t, onNode+"cleanup: true"))
	if pod := c.daemonSet().Spec.Template.Spec; pod.InitContainers[0].Args[0] != "--cleanup" || pod.Containers[0].Name != "cleaned-up" {
		c.t.Errorf("the pods that take Beeline down are %+v", pod)
	}
	c.helm.must("uninstall", release)
}

// keepsSecret: an upgrade changes neither the secret that the chart has made nor one that was
// put in its place, or nodes would not know each other. A rollback puts the content of its revision back,
// which Helm 4 refuses and Helm 3 does.
func keepsSecret(c *cluster) {
	secret := func() string {
		c.t.Helper()
		s, err := c.client.CoreV1().Secrets(namespace).Get(c.t.Context(), release+"-dsr", metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		return string(s.Data["secrets"])
	}
	const dsr = onNode + "config: {forwardingMode: dsr}\n"
	c.helm.must("install", release, chartDir(c.t), values(c.t, dsr))
	made := secret()
	if len(made) < 32 {
		c.t.Errorf("the chart has made the secret %q", made)
	}
	c.helm.must("upgrade", release, chartDir(c.t), values(c.t, dsr+"image: {tag: v2}"))
	if got := secret(); got != made {
		c.t.Errorf("after an upgrade the secret is %q, it was %q", got, made)
	}
	changed := made + "\nthe next secret of the cluster"
	patch := fmt.Sprintf(`{"stringData": {"secrets": %q}}`, changed)
	if _, err := c.client.CoreV1().Secrets(namespace).Patch(c.t.Context(), release+"-dsr", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.helm.must("upgrade", release, chartDir(c.t), values(c.t, dsr+"image: {tag: v3}"))
	if got := secret(); got != changed {
		c.t.Errorf("after an upgrade the secret is %q, it was changed to %q", got, changed)
	}
	c.helm.must("upgrade", release, chartDir(c.t), values(c.t, dsr+"image: {tag: v4}"))
	c.helm.must("rollback", release, "3")
	if got := secret(); got != changed {
		c.t.Errorf("after a rollback to a revision with the changed secret it is %q, want %q", got, changed)
	}
	if _, err := c.helm.run("rollback", release, "1"); err == nil || !strings.Contains(err.Error(), "conflict") {
		c.t.Errorf("a rollback to a revision with the former secret: %v, want a conflict", err)
	}
	c.helm.must("rollback", release, "1", "--server-side=false")
	if got := secret(); got != made {
		c.t.Errorf("after a rollback as of Helm 3 the secret is %q, want the former one, %q", got, made)
	}
	c.helm.must("uninstall", release)
	if _, err := c.client.CoreV1().Secrets(namespace).Get(c.t.Context(), release+"-dsr", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		c.t.Errorf("left behind: %v", err)
	}
}

// uninstalls: nothing of the release stays in the cluster.
func uninstalls(c *cluster) {
	c.helm.must("uninstall", release)
	ctx, get := c.t.Context(), metav1.GetOptions{}
	_, set := c.client.AppsV1().DaemonSets(namespace).Get(ctx, release, get)
	_, config := c.client.CoreV1().ConfigMaps(namespace).Get(ctx, release, get)
	_, account := c.client.CoreV1().ServiceAccounts(namespace).Get(ctx, release, get)
	_, role := c.client.RbacV1().ClusterRoles().Get(ctx, release, get)
	_, binding := c.client.RbacV1().ClusterRoleBindings().Get(ctx, release, get)
	for _, err := range []error{set, config, account, role, binding} {
		if !apierrors.IsNotFound(err) {
			c.t.Errorf("left behind: %v", err)
		}
	}
}
