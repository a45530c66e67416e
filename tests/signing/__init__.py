# <webhooks or providers/>
