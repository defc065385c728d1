package kubectl

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// metadataOnly asks for what every object has, and nothing else of it.
const metadataOnly = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"

// Names returns the names of the objects of a resource of the core API (pods, services) in a
// namespace: of many, the first 500.
func (c *Cluster) Names(ctx context.Context, resource, namespace string) (names []string, err error) {
	o := metav1.ListOptions{Limit: pageSize}
	raw, err := c.core.Get().Namespace(namespace).Resource(resource).VersionedParams(&o, c.parameters).
		SetHeader("Accept", metadataOnly).Do(ctx).Raw()
	var list metav1.PartialObjectMetadataList
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("list %s of namespace %s: %w", resource, namespace, err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}
