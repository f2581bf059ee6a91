package values

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"

	"golang.org/x/image/draw"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// maxPixels bounds an image before it is decoded, and what it is scaled to.
const maxPixels = 1 << 26

// layout is how a model wants an image.
type layout struct {
	height, width, channels int64
	// planes is true where a channel's pixels stand together (CHW).
	planes bool
}

// fromPNG decodes an image and scales it to the model's height and width.
func fromPNG(want client.Description, file []byte) (client.Tensor, error) {
	if want.Datatype == tensor.Bytes {
		return fitted(want, tensor.Shape{1}, tensor.AppendBytes(nil, file))
	}
	if k := kindOf(want.Datatype); (k != floating && k != unsigned && k != signed) || want.Datatype == tensor.Int8 {
		return client.Tensor{}, fmt.Errorf("an image has no form as %s: give the values as JSON or NPY", want.Datatype)
	}
	about, err := png.DecodeConfig(bytes.NewReader(file))
	if err != nil {
		return client.Tensor{}, fmt.Errorf("read the image: %w", err)
	}
	l, shape, err := layoutOf(want.Shape, int64(about.Height), int64(about.Width))
	if err != nil {
		return client.Tensor{}, err
	}
	if tooLarge(l.height, l.width) || tooLarge(int64(about.Height), int64(about.Width)) {
		return client.Tensor{}, fmt.Errorf("the image has more than %d pixels", maxPixels)
	}
	picture, err := png.Decode(bytes.NewReader(file))
	if err != nil {
		return client.Tensor{}, fmt.Errorf("read the image: %w", err)
	}
	want.Shape = shape
	return client.Tensor{Description: want, Data: l.elements(scale(picture, l), want.Datatype)}, nil
}

func tooLarge(height, width int64) bool {
	return height > maxPixels || width > maxPixels || height*width > maxPixels
}

// layoutOf finds height, width and channels in a model's shape, and the shape
// of one image. A size that the model leaves open is the image's own.
func layoutOf(pattern tensor.Shape, height, width int64) (layout, tensor.Shape, error) {
	shape := append(tensor.Shape{}, pattern...)
	inner := shape
	for len(inner) > 3 && (inner[0] == 1 || inner[0] == -1) {
		inner[0], inner = 1, inner[1:]
	}
	if len(inner) == 3 && inner[0] == -1 && !isChannels(inner[2]) { // a batch of grey images without channels
		inner[0], inner = 1, inner[1:]
	}
	l := layout{channels: 1}
	var size []int64
	switch {
	case len(inner) == 2:
		size = inner
	case len(inner) == 3 && isChannels(inner[0]):
		l.channels, l.planes, size = inner[0], true, inner[1:]
	case len(inner) == 3 && isChannels(inner[2]):
		l.channels, size = inner[2], inner[:2]
	}
	if size == nil || (size[0] < 0) != (size[1] < 0) {
		return l, nil, errors.New("the model's shape " + pattern.String() + " is none of an image: want height and width, with 1, 3 or 4 channels before or after them")
	}
	if size[0] < 0 {
		size[0], size[1] = height, width
	}
	l.height, l.width = size[0], size[1]
	return l, shape, nil
}

func isChannels(n int64) bool { return n == 1 || n == 3 || n == 4 }

// scale returns the picture in the layout's size, with 16 bits a channel.
func scale(picture image.Image, l layout) *image.NRGBA64 {
	out := image.NewNRGBA64(image.Rect(0, 0, int(l.width), int(l.height)))
	draw.CatmullRom.Scale(out, out.Bounds(), picture, picture.Bounds(), draw.Src, nil)
	return out
}

// elements writes the pixels: floats from 0 to 1, integers from 0 to 255.
func (l *layout) elements(picture *image.NRGBA64, d tensor.Datatype) []byte {
	var data []byte
	put := func(channel int64, at color.NRGBA64) {
		data = appendRaw(data, pixelBits(d, l.sample(channel, at)), d.Size())
	}
	if l.planes {
		for c := range l.channels {
			each(picture, func(at color.NRGBA64) { put(c, at) })
		}
		return data
	}
	each(picture, func(at color.NRGBA64) {
		for c := range l.channels {
			put(c, at)
		}
	})
	return data
}

func each(picture *image.NRGBA64, visit func(color.NRGBA64)) {
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			visit(picture.NRGBA64At(x, y))
		}
	}
}

// sample is one channel of a pixel, 0 to 65535.
func (l *layout) sample(channel int64, at color.NRGBA64) uint16 {
	if l.channels == 1 {
		return color.Gray16Model.Convert(at).(color.Gray16).Y
	}
	return [4]uint16{at.R, at.G, at.B, at.A}[channel]
}

func pixelBits(d tensor.Datatype, sample uint16) uint64 {
	if kindOf(d) == floating {
		return floatBits(d, float64(sample)/0xffff)
	}
	return (uint64(sample) + 128) / 257
}
