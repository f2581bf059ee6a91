//go:build cgo

package onnxruntime

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// use has sessions of a model run on an open GPU: by TensorRT what it takes where the model
// asks for that, else by CUDA.
func (g *gpu) use(s *ort.SessionOptions, c *modelconfig.Config, engines engineCache) error {
	if c.Backend == backends.Plans {
		if err := g.useTensorRT(s, nil, engines); err != nil {
			return err
		}
	}
	own := backends.CUDAParameters(c.Parameters)
	for _, a := range c.GPUAccelerators {
		switch a.Name { // the registry knows no other
		case backends.TensorRT:
			if err := g.useTensorRT(s, a.Parameters, engines); err != nil {
				return err
			}
		case backends.CUDA:
			maps.Copy(own, a.Parameters)
		}
	}
	options, faults := backends.CUDAOptions(own)
	if len(faults) > 0 {
		return fmt.Errorf("%s: %s", faults[0].Message, faults[0].Fix)
	}
	options["device_id"] = strconv.Itoa(g.ordinal)
	p, err := ort.NewCUDAProviderOptions()
	if err != nil {
		return err
	}
	defer p.Destroy() //nolint:errcheck // releases memory, cannot fail
	if err := p.Update(options); err != nil {
		return fmt.Errorf("the CUDA execution provider refuses its options: %w", err)
	}
	return s.AppendExecutionProviderCUDA(p)
}

func (g *gpu) useTensorRT(s *ort.SessionOptions, parameters map[string]string, engines engineCache) error {
	if provider := filepath.Join(g.cuda.providers, tensorRTProvider); !exists(provider) {
		return fmt.Errorf("this ONNX Runtime has no TensorRT execution provider: there is no %s", provider)
	}
	version, err := g.cuda.tensorRT()
	if err != nil {
		return err
	}
	options, faults := backends.TensorRTOptions(parameters)
	if len(faults) > 0 {
		return fmt.Errorf("%s: %s", faults[0].Message, faults[0].Fix)
	}
	capability, err := g.capability()
	if err == nil {
		err = engines.place(options, version, capability)
	}
	if err != nil {
		return err
	}
	options["device_id"] = strconv.Itoa(g.ordinal)
	p, err := ort.NewTensorRTProviderOptions()
	if err != nil {
		return err
	}
	defer p.Destroy() //nolint:errcheck // releases memory, cannot fail
	if err := p.Update(options); err != nil {
		return fmt.Errorf("the TensorRT execution provider refuses its options: %w", err)
	}
	return s.AppendExecutionProviderTensorRT(p)
}

// engineCache is where the engines are that TensorRT builds of a model, which takes minutes.
type engineCache struct {
	root, model string // directory, and the model's file
	runtime     string // version of ONNX Runtime
}

// engineCache names the place for a version's engines: below the setting's directory, or else
// that of the user's caches.
func (b *Backend) engineCache(model string) engineCache {
	root := b.options.EngineCache
	if root == "" {
		caches, err := os.UserCacheDir()
		if err != nil { // nobody's
			caches = os.TempDir()
		}
		root = filepath.Join(caches, "nereid", "engines")
	}
	return engineCache{root: root, model: model, runtime: b.Version()}
}

// place has engines kept, where the model asks for that and does not say where, by what they
// depend on: the model's content, the kind of GPU, and the versions that build them.
func (e engineCache) place(options map[string]string, tensorRT, capability string) error {
	kept := map[string]string{"trt_engine_cache_enable": "trt_engine_cache_path", "trt_timing_cache_enable": "trt_timing_cache_path"}
	maps.DeleteFunc(kept, func(enable, path string) bool { return options[enable] != "1" || options[path] != "" })
	if len(kept) == 0 {
		return nil
	}
	digest, err := digestOf(e.model)
	if err != nil {
		return err
	}
	dir := filepath.Join(e.root, fmt.Sprintf("%s-sm%s-tensorrt%s-onnxruntime%s", digest, capability, tensorRT, e.runtime))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("no directory for TensorRT's engines: %w; name another with --backend-config=onnxruntime,engine-cache=DIR", err)
	}
	for _, path := range kept {
		options[path] = dir
	}
	return nil
}

func digestOf(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}
