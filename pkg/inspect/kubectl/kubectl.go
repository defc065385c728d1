// Package kubectl runs commands in the agents' pods through the API server, with the credentials and
// the rights of kubectl's user.
package kubectl

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/beeline-lb/beeline/pkg/version"
)

// Options say which cluster, and which pods of it are agents.
type Options struct {
	// Kubeconfig is a file; "" is what kubectl would take: $KUBECONFIG, ~/.kube/config, or the
	// service account of a pod.
	Kubeconfig string
	// Context is one of the kubeconfig; "" is its current one.
	Context string
	// Namespace and Selector find the agents' pods.
	Namespace string
	Selector  string
}

// The pods of the chart, also of a release of another name.
const (
	DefaultNamespace = "kube-system"
	DefaultSelector  = "app.kubernetes.io/part-of=beeline"
)

// Cluster is an API server with the agents behind it. Its methods may be called at the same time.
type Cluster struct {
	// Namespace is that of the kubeconfig's context, which a pod is in that is named without one.
	Namespace string

	options    Options
	config     *rest.Config
	core       rest.Interface
	parameters runtime.ParameterCodec
}

// Open reads the kubeconfig. The API server is not asked yet.
func Open(o Options) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.Context})
	config, err := loaded.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	c := &Cluster{options: o, config: config}
	if c.Namespace, _, err = loaded.Namespace(); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	// The generated clientset would register every API group.
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register api types: %w", err)
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config.UserAgent = "kubectl-beeline/" + version.String()
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.parameters = runtime.NewParameterCodec(scheme)
	if c.core, err = rest.RESTClientFor(config); err != nil {
		return nil, fmt.Errorf("client for api server %s: %w", config.Host, err)
	}
	return c, nil
}

// Client is a pod whose connections are asked about.
type Client struct {
	Namespace string
	Node      string
	// Addresses are the pod's, of one family or both; none of a pod in the network namespace of
	// its node.
	Addresses []string
}

// Client returns the pod of a name. It fails for one that has no address yet, or none any more.
func (c *Cluster) Client(ctx context.Context, namespace, name string) (*Client, error) {
	pod := new(corev1.Pod)
	if err := c.core.Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(pod); err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	client := &Client{Namespace: namespace, Node: pod.Spec.NodeName}
	switch {
	case pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		return nil, fmt.Errorf("pod %s/%s has ended", namespace, name)
	case pod.Spec.NodeName == "":
		return nil, fmt.Errorf("pod %s/%s is on no node yet", namespace, name)
	case pod.Spec.HostNetwork:
		return client, nil
	case len(pod.Status.PodIPs) == 0:
		return nil, fmt.Errorf("pod %s/%s has no address yet", namespace, name)
	}
	for _, ip := range pod.Status.PodIPs {
		client.Addresses = append(client.Addresses, ip.IP)
	}
	return client, nil
}
