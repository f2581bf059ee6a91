package python

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
)

// canceled is a code as the models' interface spells it.
const canceled = "CANCELLED" //nolint:misspell // it is what models compare with

// reasonOf is the reason of an error of a model by its code.
func reasonOf(code string) errs.Reason {
	switch code {
	case "UNKNOWN":
		return errs.ModelUnknown
	case "NOT_FOUND":
		return errs.ModelFoundNot
	case "INVALID_ARG":
		return errs.ModelRefused
	case "UNAVAILABLE":
		return errs.ModelBusy
	case "UNSUPPORTED":
		return errs.ModelUnsupported
	case "ALREADY_EXISTS":
		return errs.AlreadyExists
	case canceled:
		return errs.Canceled
	}
	return errs.ExecutionFailed
}

// failure is the error of a model.
func (m *model) failure(e stub.Error) error {
	return errs.New(reasonOf(e.Code), "%s", e.Text).WithModel(m.version.Ref.Name)
}

// codeOf is the code by which a model sees an error of a call.
func codeOf(err error) string {
	if err == nil {
		return ""
	}
	switch reason := errs.Of(err); reason {
	case errs.ModelUnknown:
		return "UNKNOWN"
	case errs.AlreadyExists:
		return "ALREADY_EXISTS"
	case errs.Canceled:
		return canceled
	default:
		switch reason.HTTP() {
		case 400:
			return "INVALID_ARG"
		case 404:
			return "NOT_FOUND"
		case 429, 503:
			return "UNAVAILABLE"
		case 501:
			return "UNSUPPORTED"
		}
	}
	return "INTERNAL"
}
