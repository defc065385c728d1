package kubectl

import (
	"context"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// pageSize is how many objects are listed at once.
const pageSize = 500

// metadataOnly asks for what every object has, and nothing else of it.
const metadataOnly = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"

// inPages calls list with the options for one page after the other. It returns where the next one
// begins, "" after the last.
func inPages(o metav1.ListOptions, list func(o metav1.ListOptions) (next string, err error)) (err error) {
	for o.Limit = pageSize; ; {
		if o.Continue, err = list(o); err != nil || o.Continue == "" {
			return err
		}
	}
}

// getJSON reads an object of a type that the client does not know.
func getJSON(ctx context.Context, request *rest.Request, into any) error {
	result := request.Do(ctx)
	if err := result.Error(); err != nil { // says more than that of Raw
		return err
	}
	raw, err := result.Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}
