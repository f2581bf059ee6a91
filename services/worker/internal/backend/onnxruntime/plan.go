//go:build cgo

package onnxruntime

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/onnxheader"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// planModel is an ONNX model whose one node is a TensorRT plan: ONNX Runtime's provider for
// TensorRT runs it by that. It is a directory of its own, in which the plan goes by a link.
type planModel struct {
	dir  string
	file string
}

const linkedPlan = "model.plan"

// newPlanModel describes the version's plan, which the GPU can run.
func (b *Backend) newPlanModel(v backend.Version, plan string) (*planModel, error) {
	p, err := readPlan(plan + backends.PlanSuffix)
	if err != nil {
		return nil, err
	}
	if err := checkProfiles(v, p); err != nil {
		return nil, err
	}
	g := b.deviceOf(v)
	if g == nil {
		return nil, errors.New("plans run on GPUs alone: use KIND_GPU")
	}
	if err := g.cuda.open(g.ordinal); err != nil {
		return nil, err
	}
	version, err := g.cuda.tensorRT()
	if err != nil {
		return nil, err
	}
	capability, err := g.capability()
	if err == nil {
		err = p.RunsOn(version, capability)
	}
	if err != nil {
		return nil, err
	}
	return writePlanModel(p, plan)
}

func readPlan(path string) (*backends.Plan, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the plan is not described: %w; build it with examples/tensorrt/build.py", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	return backends.ReadPlan(file, info.Size())
}

// checkProfiles refuses profiles that the provider does not use: it takes the first one.
func checkProfiles(v backend.Version, p *backends.Plan) error {
	first := []string{"0"}
	if len(p.Profiles) > 0 {
		first = append(first, p.Profiles[0].Name)
	}
	for _, g := range v.Config.Groups {
		for _, name := range g.Profiles {
			if !slices.Contains(first, name) {
				return fmt.Errorf("instance group '%s' asks for profile '%s', and plans run with their first one: build a plan with that one, and remove profile", g.Name, name)
			}
		}
	}
	return nil
}

func writePlanModel(p *backends.Plan, plan string) (*planModel, error) {
	dir, err := os.MkdirTemp("", "nereid-plan-")
	if err != nil {
		return nil, err
	}
	m := &planModel{dir: dir, file: filepath.Join(dir, "model.onnx")}
	plan, err = filepath.Abs(plan)
	if err == nil {
		err = os.Symlink(plan, filepath.Join(dir, linkedPlan))
	}
	if err == nil {
		err = os.WriteFile(m.file, encodePlanModel(p.Header()), 0o600)
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// close removes what was made.
func (m *planModel) close() { _ = os.RemoveAll(m.dir) } // temporary files are the system's to remove as well

// The fields of ONNX's messages that are written, by their numbers in onnx.proto.
const (
	modelIR, modelGraph, modelOpset                              = 1, 7, 8
	opsetDomain, opsetVersion                                    = 1, 2
	graphNode, graphName, graphInput, graphOutput                = 1, 2, 11, 12
	nodeInput, nodeOutput, nodeType, nodeAttribute, nodeDomain   = 1, 2, 4, 5, 7
	attributeName, attributeInt, attributeText, attributeType    = 1, 3, 4, 20
	attributeIsInt, attributeIsText                              = 2, 3
	valueName, valueType, typeTensor, tensorElement, tensorShape = 1, 2, 1, 1, 2
	shapeDim, dimSize, dimSymbol                                 = 1, 1, 2
	irVersion, opset                                             = 9, 17
	contextDomain, contextNode                                   = "com.microsoft", "EPContext"
	contextSource                                                = "TensorrtExecutionProvider"
)

// encodePlanModel writes the model: a node EPContext with the inputs and outputs of the plan,
// which names its file.
func encodePlanModel(h *onnxheader.Header) []byte {
	var node, graph, model []byte
	for _, v := range h.Inputs {
		node = field(node, nodeInput, []byte(v.Name))
		graph = field(graph, graphInput, encodeValue(v))
	}
	for _, v := range h.Outputs {
		node = field(node, nodeOutput, []byte(v.Name))
		graph = field(graph, graphOutput, encodeValue(v))
	}
	node = field(node, nodeType, []byte(contextNode))
	for _, a := range []struct {
		name, text string
		number     uint64
	}{{"main_context", "", 1}, {"embed_mode", "", 0}, {"ep_cache_context", linkedPlan, 0}, {"source", contextSource, 0}} {
		node = field(node, nodeAttribute, encodeAttribute(a.name, a.text, a.number))
	}
	node = field(node, nodeDomain, []byte(contextDomain))
	graph = field(graph, graphNode, node)
	graph = field(graph, graphName, []byte("plan"))
	model = number(model, modelIR, irVersion)
	model = field(model, modelOpset, number(nil, opsetVersion, opset))
	model = field(model, modelOpset, number(field(nil, opsetDomain, []byte(contextDomain)), opsetVersion, 1))
	return field(model, modelGraph, graph)
}

func encodeAttribute(name, text string, n uint64) []byte {
	a := field(nil, attributeName, []byte(name))
	if text != "" {
		return number(field(a, attributeText, []byte(text)), attributeType, attributeIsText)
	}
	return number(number(a, attributeInt, n), attributeType, attributeIsInt)
}

func encodeValue(v onnxheader.Value) []byte {
	var shape []byte
	for i, d := range v.Dims {
		dim := number(nil, dimSize, uint64(d.Size))
		if d.Size < 0 {
			dim = field(nil, dimSymbol, fmt.Appendf(nil, "%s_%d", v.Name, i))
		}
		shape = field(shape, shapeDim, dim)
	}
	t := field(number(nil, tensorElement, uint64(v.Element)), tensorShape, shape)
	return field(field(nil, valueName, []byte(v.Name)), valueType, field(nil, typeTensor, t))
}

func field(b []byte, n protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), content)
}

func number(b []byte, n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

// tensorRT loads TensorRT and returns its version.
func (d *cuda) tensorRT() (string, error) {
	for _, library := range tensorRTLibraries() {
		if err := d.Keep(library); err != nil {
			return "", fmt.Errorf("TensorRT's library %s is not there: %w; install TensorRT 10 for CUDA 13, and name its directory with "+
				"--backend-config=onnxruntime,cuda-libraries=DIR, or serve the ONNX model on CUDA", library, err)
		}
	}
	name := C.CString(d.Find(tensorRTLibraries()[0]))
	defer C.free(unsafe.Pointer(name))
	v := int(C.nrt_tensorrt_version(name)) // 10.13.3 is 101303
	return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100), nil
}

// capability is the GPU's compute capability, such as 9.0.
func (g *gpu) capability() (string, error) {
	capability, err := g.cuda.Capability(g.ordinal)
	if err != nil {
		return "", fmt.Errorf("GPU %d does not tell its compute capability: %w", g.number, err)
	}
	return capability, nil
}
