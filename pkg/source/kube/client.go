package kube

import (
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/beeline-lb/beeline/pkg/version"
)

// clients are of one API group each.
type clients struct {
	core, discovery, networking, events rest.Interface

	clock *serverClock
}

// newClients returns clients of the groups that the agent uses.
//
// They know these groups only. The generated clientset would register every API
// group, which costs the agent memory and time at its start.
func newClients(o Options) (*clients, error) {
	base, err := clientConfig(o)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	err = errors.Join(corev1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme),
		networkingv1.AddToScheme(scheme), eventsv1.AddToScheme(scheme))
	if err != nil {
		return nil, fmt.Errorf("register api types: %w", err)
	}
	// Errors of the API server are of group version v1 whatever was asked for.
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	base.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()

	c := &clients{clock: new(serverClock)}
	base.Wrap(func(next http.RoundTripper) http.RoundTripper { return clockTransport{next, c.clock} })
	transport, err := rest.HTTPClientFor(base)
	if err != nil {
		return nil, fmt.Errorf("client for api server %s: %w", base.Host, err)
	}
	for _, group := range []struct {
		client  *rest.Interface
		path    string
		version schema.GroupVersion
	}{
		{&c.core, "/api", corev1.SchemeGroupVersion},
		{&c.discovery, "/apis", discoveryv1.SchemeGroupVersion},
		{&c.networking, "/apis", networkingv1.SchemeGroupVersion},
		{&c.events, "/apis", eventsv1.SchemeGroupVersion},
	} {
		config := rest.CopyConfig(base)
		config.APIPath, config.GroupVersion = group.path, &group.version
		if *group.client, err = rest.RESTClientForConfigAndClient(config, transport); err != nil {
			return nil, fmt.Errorf("client for api server %s: %w", base.Host, err)
		}
	}
	return c, nil
}

// clientConfig returns the client configuration for o's API server, with content types, rate limits and
// the agent's name set.
func clientConfig(o Options) (*rest.Config, error) {
	c, err := serverConfig(o)
	if err != nil {
		return nil, err
	}
	c.QPS, c.Burst = o.QPS, o.Burst
	c.ContentType, c.AcceptContentTypes = o.ContentType, o.AcceptContentTypes
	if c.ContentType == "" {
		c.ContentType = runtime.ContentTypeProtobuf
	}
	if c.AcceptContentTypes == "" {
		c.AcceptContentTypes = c.ContentType + "," + runtime.ContentTypeJSON
	}
	c.UserAgent = "beeline-agent/" + version.String()
	return c, nil
}

// serverConfig returns address and credentials: those given, the kubeconfig's or
// the pod's, in this order. The result is the caller's own.
func serverConfig(o Options) (*rest.Config, error) {
	if o.Config != nil {
		return rest.CopyConfig(o.Config), nil
	}
	if o.Kubeconfig != "" {
		c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: o.Kubeconfig},
			&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: o.Master}},
		).ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", o.Kubeconfig, err)
		}
		return c, nil
	}
	c, err := rest.InClusterConfig()
	switch {
	case err == nil && o.Master != "":
		c.Host = o.Master
		return c, nil
	case err == nil:
		return c, nil
	case o.Master != "" && errors.Is(err, rest.ErrNotInCluster):
		return &rest.Config{Host: o.Master}, nil
	case errors.Is(err, rest.ErrNotInCluster):
		return nil, errors.New("no API server configured: give a kubeconfig or a master URL, or run in a pod with a service account")
	}
	return nil, fmt.Errorf("service account of this pod: %w", err)
}
