// Package kubeclient is a client of the API groups that tests use. client-go's clientset has
// all groups, some 200 packages more to build.
package kubeclient

import (
	"cmp"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	eventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	networkingv1 "k8s.io/client-go/kubernetes/typed/networking/v1"
	rbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
)

// Client is used as client-go's clientset.
type Client struct {
	apps          *appsv1.AppsV1Client
	authorization *authorizationv1.AuthorizationV1Client
	core          *corev1.CoreV1Client
	discovery     *discoveryv1.DiscoveryV1Client
	events        *eventsv1.EventsV1Client
	networking    *networkingv1.NetworkingV1Client
	rbac          *rbacv1.RbacV1Client
}

// New returns a client of an API server. The error is that of the configuration.
func New(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = cmp.Or(config.UserAgent, rest.DefaultKubernetesUserAgent())
	if config.RateLimiter == nil && config.QPS > 0 { // one for all groups
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(config.QPS, config.Burst)
	}
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	c, errs := new(Client), make([]error, 7)
	c.apps, errs[0] = appsv1.NewForConfigAndClient(config, h)
	c.authorization, errs[1] = authorizationv1.NewForConfigAndClient(config, h)
	c.core, errs[2] = corev1.NewForConfigAndClient(config, h)
	c.discovery, errs[3] = discoveryv1.NewForConfigAndClient(config, h)
	c.events, errs[4] = eventsv1.NewForConfigAndClient(config, h)
	c.networking, errs[5] = networkingv1.NewForConfigAndClient(config, h)
	c.rbac, errs[6] = rbacv1.NewForConfigAndClient(config, h)
	return c, errors.Join(errs...)
}

// AppsV1 is the client of apps/v1.
func (c *Client) AppsV1() appsv1.AppsV1Interface { return c.apps }

// AuthorizationV1 is the client of authorization.k8s.io/v1.
func (c *Client) AuthorizationV1() authorizationv1.AuthorizationV1Interface { return c.authorization }

// CoreV1 is the client of v1.
func (c *Client) CoreV1() corev1.CoreV1Interface { return c.core }

// DiscoveryV1 is the client of discovery.k8s.io/v1.
func (c *Client) DiscoveryV1() discoveryv1.DiscoveryV1Interface { return c.discovery }

// EventsV1 is the client of events.k8s.io/v1.
func (c *Client) EventsV1() eventsv1.EventsV1Interface { return c.events }

// NetworkingV1 is the client of networking.k8s.io/v1.
func (c *Client) NetworkingV1() networkingv1.NetworkingV1Interface { return c.networking }

// RbacV1 is the client of rbac.authorization.k8s.io/v1.
func (c *Client) RbacV1() rbacv1.RbacV1Interface { return c.rbac }

// Informer returns an informer of the objects of a resource, such as "services", in all namespaces
// that options select; of is an object of that kind. It has to be run.
func Informer(client rest.Interface, resource string, of runtime.Object, resync time.Duration, options func(*metav1.ListOptions)) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(cache.NewFilteredListWatchFromClient(client, resource, metav1.NamespaceAll, options), of, resync, cache.Indexers{})
}
