package onnxheader

import "google.golang.org/protobuf/encoding/protowire"

// parser fills a header. The field numbers are those of onnx.proto.
type parser struct {
	scanner
	header   *Header
	graphs   bool
	dims     int
	external map[string]bool
	// constants are the names of initializers, which may follow the inputs.
	constants map[string]bool
}

// model reads ModelProto, the whole file.
func (p *parser) model() error {
	p.constants = make(map[string]bool)
	var version string
	err := p.within(uint64(p.end), func(f field) (err error) {
		switch f.number {
		case 1:
			p.header.IRVersion = int64(f.value)
		case 2:
			p.header.Producer, err = p.string(f)
		case 3:
			version, err = p.string(f)
		case 7:
			p.graphs = true
			err = p.message(f, p.graph)
		case 8:
			err = p.opset(f)
		case 14:
			err = p.note(f)
		}
		return err
	})
	if version != "" && p.header.Producer != "" {
		p.header.Producer += " " + version
	}
	return err
}

// message reads the message that a field holds.
func (p *parser) message(f field, each func(field) error) error {
	if f.wire != protowire.BytesType {
		return malformed("field %d is not a message", f.number)
	}
	return p.within(f.value, each)
}

func (p *parser) opset(f field) error {
	var o Opset
	err := p.message(f, func(f field) (err error) {
		switch f.number {
		case 1:
			o.Domain, err = p.string(f)
		case 2:
			o.Version = int64(f.value)
		}
		return err
	})
	if len(p.header.Opsets) == maxValues {
		return malformed("it has more than %d operator sets", maxValues)
	}
	p.header.Opsets = append(p.header.Opsets, o)
	return err
}

func (p *parser) note(f field) error {
	key, value, err := p.pair(f)
	if p.header.Metadata == nil {
		p.header.Metadata = make(map[string]string)
	}
	if len(p.header.Metadata) == maxValues {
		return malformed("it has more than %d notes", maxValues)
	}
	p.header.Metadata[key] = value
	return err
}

// pair reads a StringStringEntryProto.
func (p *parser) pair(f field) (key, value string, err error) {
	err = p.message(f, func(f field) (err error) {
		switch f.number {
		case 1:
			key, err = p.string(f)
		case 2:
			value, err = p.string(f)
		}
		return err
	})
	return key, value, err
}

// graph reads a field of GraphProto.
func (p *parser) graph(f field) (err error) {
	switch f.number {
	case 5:
		return p.message(f, p.initializer)
	case 11:
		p.header.Inputs, err = p.value(p.header.Inputs, f)
	case 12:
		p.header.Outputs, err = p.value(p.header.Outputs, f)
	case 15: // a sparse initializer carries its name in its first tensor
		return p.message(f, func(f field) error {
			if f.number == 1 {
				return p.message(f, p.initializer)
			}
			return nil
		})
	}
	return err
}

// initializer reads a field of TensorProto: its name and where its bytes are.
func (p *parser) initializer(f field) error {
	switch f.number {
	case 8:
		name, err := p.string(f)
		if len(p.constants) == maxNames {
			return malformed("it has more than %d weights", maxNames)
		}
		p.constants[name] = true
		return err
	case 13:
		key, value, err := p.pair(f)
		if key != "location" || p.external[value] {
			return err
		}
		if len(p.external) == maxNames {
			return malformed("its weights are in more than %d files", maxNames)
		}
		p.external[value] = true
		p.header.External = append(p.header.External, value)
		return err
	}
	return nil
}

// value reads a ValueInfoProto.
func (p *parser) value(list []Value, f field) ([]Value, error) {
	if len(list) == maxValues {
		return nil, malformed("it has more than %d inputs or outputs", maxValues)
	}
	var v Value
	err := p.message(f, func(f field) (err error) {
		switch f.number {
		case 1:
			v.Name, err = p.string(f)
		case 2:
			err = p.message(f, func(f field) error { return p.valueType(&v, f) })
		}
		return err
	})
	return append(list, v), err
}

// valueType reads a field of TypeProto.
func (p *parser) valueType(v *Value, f field) error {
	switch f.number {
	case 1:
		v.Kind = KindTensor
		return p.message(f, func(f field) error { return p.tensor(v, f) })
	case 4:
		v.Kind = KindSequence
	case 5:
		v.Kind = KindMap
	case 7:
		v.Kind = KindOpaque
	case 8:
		v.Kind = KindSparseTensor
	case 9:
		v.Kind = KindOptional
	}
	return nil
}

// tensor reads a field of TypeProto.Tensor.
func (p *parser) tensor(v *Value, f field) error {
	switch f.number {
	case 1:
		v.Element = int32(f.value)
	case 2:
		v.HasShape = true
		return p.message(f, func(f field) error {
			if f.number == 1 {
				return p.dim(v, f)
			}
			return nil
		})
	}
	return nil
}

func (p *parser) dim(v *Value, f field) error {
	if p.dims++; p.dims > maxValues {
		return malformed("its inputs and outputs have more than %d dimensions", maxValues)
	}
	d := Dim{Size: -1}
	err := p.message(f, func(f field) (err error) {
		switch f.number {
		case 1:
			// Runtimes take any negative size as open.
			d.Size, d.Symbol = max(-1, int64(f.value)), ""
		case 2:
			d.Size = -1
			d.Symbol, err = p.string(f)
		}
		return err
	})
	v.Dims = append(v.Dims, d)
	return err
}

// markDefaults tells the inputs that have a value of their own.
func (p *parser) markDefaults() {
	for i := range p.header.Inputs {
		p.header.Inputs[i].HasDefault = p.constants[p.header.Inputs[i].Name]
	}
}
