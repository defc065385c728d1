package kubectl

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Names returns the names of the objects of a resource of the core API (pods, services) in a
// namespace: of many, the first 500.
func (c *Cluster) Names(ctx context.Context, resource, namespace string) (names []string, err error) {
	o := metav1.ListOptions{Limit: pageSize}
	var list metav1.PartialObjectMetadataList
	err = getJSON(ctx, c.core.Get().Namespace(namespace).Resource(resource).VersionedParams(&o, c.parameters).SetHeader("Accept", metadataOnly), &list)
	if err != nil {
		return nil, fmt.Errorf("list %s of namespace %s: %w", resource, namespace, err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// HasService reports whether the cluster has a Service.
func (c *Cluster) HasService(ctx context.Context, namespace, name string) (bool, error) {
	err := c.core.Get().Namespace(namespace).Resource("services").Name(name).Do(ctx).Error()
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for service %s/%s: %w", namespace, name, err)
	}
	return true, nil
}

// HasNode reports whether the cluster has a node. It takes the right to list nodes.
func (c *Cluster) HasNode(ctx context.Context, name string) (bool, error) {
	o := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	var list metav1.PartialObjectMetadataList
	if err := getJSON(ctx, c.core.Get().Resource("nodes").VersionedParams(&o, c.parameters).SetHeader("Accept", metadataOnly), &list); err != nil {
		return false, fmt.Errorf("look for node %s: %w", name, err)
	}
	return len(list.Items) > 0, nil
}
