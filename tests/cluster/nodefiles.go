package main

import (
	"embed"
	"os"
	"strings"
	"text/template"
)

//go:embed manifests node
var embedded embed.FS

// templates are the files of nodes and the manifests, by their base name.
var templates = template.Must(template.ParseFS(embedded, "manifests/*", "node/*"))

// render fills in a template.
func render(name string, data any) (string, error) {
	var b strings.Builder
	err := templates.ExecuteTemplate(&b, name, data)
	return b.String(), err
}

// nodeFiles returns what is written to a node before it starts.
func (c *cluster) nodeFiles(i int) (map[string]string, error) {
	data := struct {
		Programs   programFolders
		PauseImage string
		Socket     string
		PodRanges  []string
		DNSAddr    string
		MTU        int
	}{
		Programs: c.Programs, PauseImage: pauseImage, Socket: containerdSocket, DNSAddr: dnsAddr4, MTU: 1500,
	}
	if c.Fabric == fabricVXLAN {
		data.MTU -= tunnelOverhead
	}
	for _, p := range podRanges(i) {
		data.PodRanges = append(data.PodRanges, p.String())
	}
	files := map[string]string{
		"etc/hostname":    nodeName(i) + "\n",
		"etc/hosts":       "127.0.0.1 localhost\n::1 localhost\n",
		"etc/resolv.conf": "nameserver " + routerAddr4 + "\n",
		"etc/machine-id":  strings.Repeat("0", 31) + string(rune('0'+i)) + "\n",
	}
	for path, name := range map[string]string{
		"etc/containerd/config.toml":     "containerd.toml",
		"etc/cni/net.d/10-pods.conflist": "pods.conflist",
		"etc/kubernetes/kubelet.yaml":    "kubelet.yaml",
	} {
		if hasAddon(c.Fabric) && name == "pods.conflist" {
			continue // the add-on brings its own
		}
		content, err := render(name, data)
		if err != nil {
			return nil, err
		}
		files[path] = content
	}
	for path, name := range map[string]string{
		"etc/kubernetes/ca.crt":       "ca.crt",
		"etc/kubernetes/kubelet.conf": nodeName(i) + ".conf",
	} {
		b, err := os.ReadFile(c.credential(name))
		if err != nil {
			return nil, err
		}
		files[path] = string(b)
	}
	return files, nil
}

func kubeletArgs(i int) []string {
	return []string{
		"--config=/etc/kubernetes/kubelet.yaml",
		"--kubeconfig=/etc/kubernetes/kubelet.conf",
		"--hostname-override=" + nodeName(i),
		"--node-ip=" + addresses(i),
		"--v=2",
	}
}
