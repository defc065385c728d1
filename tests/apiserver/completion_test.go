package apiserver

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
)

// testCompletion: kubectl is offered the pods and Services of a namespace.
func testCompletion(t *testing.T, c *cluster) {
	for _, name := range []string{"web", "db"} {
		_, err := c.client.CoreV1().Services(c.namespace).Create(t.Context(), c.service(name), metav1.CreateOptions{})
		must(t, err)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-0"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
		}
		_, err = c.client.CoreV1().Pods(c.namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		must(t, err)
	}
	for args, want := range map[string]string{
		"explain %/":            "%/db-0 %/web-0 :4",
		"explain %/db-0 ":       "db web :4",
		"top %/w":               "%/web :4",
		"monitor --service %/d": "%/db :4",
	} {
		var out, errs bytes.Buffer
		words := strings.Split(strings.ReplaceAll(args, "%", c.namespace), " ")
		env := cli.Env{In: os.Stdin, Out: &out, Err: &errs, Now: time.Now}
		code := cli.RunPluginCompletion(t.Context(), env, append([]string{"--kubeconfig=" + c.server.Kubeconfig}, words...)...)
		want = strings.ReplaceAll(want, "%", c.namespace)
		if got := strings.Join(strings.Fields(out.String()), " "); code != cli.ExitOK || got != want {
			t.Errorf("%s: exit code %d, offered %q, want %q; said %s", args, code, got, want, &errs)
		}
	}
}
