// Command schemas says whether Kubernetes of one version knows every field of some objects.
//
// It reads one rendered manifest a line from standard input, as a JSON string of YAML documents, and writes a JSON list for
// each: the kind and name of every document and what the strict decoder of the API server says to it, which refuses fields
// that it does not know and keys that stand twice. Which version answers is decided by the go.mod that it is built with.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// Verdict is about one document.
type Verdict struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	// Known is whether this version of Kubernetes has such a kind.
	Known bool `json:"known"`
	// Error is empty for an object that is decoded without complaint.
	Error string `json:"error"`
}

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionregistration.AddToScheme, apiextensions.AddToScheme, apps.AddToScheme, autoscaling.AddToScheme,
		batch.AddToScheme, core.AddToScheme, networking.AddToScheme, policy.AddToScheme, rbac.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			fail(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	encoder := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var manifest string
		if err := json.Unmarshal(lines.Bytes(), &manifest); err != nil {
			fail(err)
		}
		verdicts, err := judge(decoder, []byte(manifest))
		if err != nil {
			fail(err)
		}
		if err := encoder.Encode(verdicts); err != nil {
			fail(err)
		}
	}
	if err := lines.Err(); err != nil {
		fail(err)
	}
}

func judge(decoder runtime.Decoder, manifest []byte) ([]Verdict, error) {
	verdicts := []Verdict{}
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return verdicts, nil
		}
		if err != nil {
			return nil, err
		}
		var head meta.PartialObjectMetadata
		if err := sigsyaml.Unmarshal(document, &head); err != nil {
			return nil, err
		}
		if head.Kind == "" {
			// Comments alone.
			continue
		}
		verdict := Verdict{APIVersion: head.APIVersion, Kind: head.Kind, Name: head.Name, Known: true}
		if _, _, err := decoder.Decode(document, nil, nil); err != nil {
			verdict.Known = !runtime.IsNotRegisteredError(err)
			verdict.Error = err.Error()
		}
		verdicts = append(verdicts, verdict)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "schemas:", err)
	os.Exit(1)
}
