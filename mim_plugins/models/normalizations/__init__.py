from .centre_sharpen import CentreSharpen

__all__ = ['CentreSharpen']
