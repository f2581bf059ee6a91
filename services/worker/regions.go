package worker

import (
	"fmt"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/plane/region"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
	cuda "github.com/nereid-serving/nereid/services/worker/internal/device"
)

// openCUDA returns CUDA for the memory that clients share, from the same libraries that models use.
func openCUDA(c Config) *cuda.CUDA {
	settings, _ := c.backendSettings() // validated
	return cuda.New(cuda.Directories(onnxruntime.CUDALibraries(settings), c.OnnxRuntimeLibrary))
}

// RegisterRegions registers the service that shares memory of the worker's GPU with the clients of gateways: see
// [region.Register]. A worker without a GPU shares none.
func (w *Worker) RegisterRegions(s grpc.ServiceRegistrar) {
	if w.config.Device.Kind == modelconfig.KindGPU {
		region.Register(s, w.mapRegion)
	}
}

func (w *Worker) mapRegion(number int32, raw [region.HandleBytes]byte) (region.Memory, error) {
	if number != w.config.Device.Number {
		return nil, fmt.Errorf("the worker has GPU %d, not %d", w.config.Device.Number, number)
	}
	ordinal := cuda.Ordinal(int(number))
	if err := w.cuda.Open(ordinal); err != nil {
		return nil, err
	}
	m, err := w.cuda.Map(ordinal, raw)
	if err != nil {
		return nil, err // not m, which would be no nil interface
	}
	return m, nil
}
