"""Makes `transformers` compute in the model's own type where it computes in fp32 whatever that is: RMSNorm and softmax."""
import sys
import torch


def double_norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def use_double():
    """Once the model's own module is loaded."""
    softmax = torch.nn.functional.softmax

    def double_softmax(x, dim=None, dtype=None, **rest):
        return softmax(x, dim=dim, **rest)

    torch.nn.functional.softmax = double_softmax
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()) if "transformers.models" in getattr(module, "__name__", "") else ():
            if name.endswith("RMSNorm"):
                value.forward = double_norm
